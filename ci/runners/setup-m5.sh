#!/usr/bin/env bash
# Makes an M5 (macOS 26.2 or newer) ready for one-job runners. May run again at any time: it changes what differs.
# Usage: sudo ci/runners/setup-m5.sh RUNNER.tar.gz SHA256     (both from the releases of actions/runner, osx-arm64)
set -euo pipefail
archive=${1:?the runner archive, actions-runner-osx-arm64-VERSION.tar.gz}
digest=${2:?its SHA-256, from the page of the release}
here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" = 0 ] || { echo "error: run it with sudo" >&2; exit 1; }
[ "$(uname -sm)" = "Darwin arm64" ] || { echo "error: this is $(uname -sm), not an M5" >&2; exit 1; }
home=/Users/actions
ours=/usr/local/lib/actions-runner
path=/Library/Frameworks/Python.framework/Versions/Current/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin

echo "== macOS and chip"
version=$(sw_vers -productVersion)
IFS=. read -r major minor _ <<<"$version.0.0"
if [ "$major" -lt 26 ] || { [ "$major" -eq 26 ] && [ "$minor" -lt 2 ]; }; then
  echo "error: macOS $version; the neural accelerators need 26.2" >&2
  exit 1
fi
sysctl -n machdep.cpu.brand_string

echo "== a user without administrator's rights, that writes to one folder only: $home/job, which each job gets empty"
if ! id -u actions >/dev/null 2>&1; then
  sysadminctl -addUser actions -home "$home" -password "$(openssl rand -base64 30)"
  createhomedir -c -u actions >/dev/null
fi
dseditgroup -o edit -d actions -t user admin 2>/dev/null || true
chown root:staff "$home"
chmod 0750 "$home"
install -d -o actions -g staff -m 0700 "$home/job"

echo "== tools"
PATH=$path python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  echo "warning: Python 3.11 or newer is needed (python.org's installer); Apple's own is older" >&2
xcrun --find metal >/dev/null 2>&1 ||
  echo "warning: no Metal compiler: install Xcode, then xcodebuild -downloadComponent MetalToolchain" >&2

echo "== no sleep, no low power mode"
pmset -c sleep 0 disksleep 0
pmset -c powermode 0 || pmset -c lowpowermode 0 || echo "warning: turn low power mode off in System Settings" >&2

echo "== runner, hooks and service"
# root owns all of it and the folders above: no job can change it
install -d -o root -g wheel -m 0755 /usr/local/lib "$ours" "$ours/hooks"
install -o root -g wheel -m 0644 "$archive" "$ours/runner.new"
echo "$digest  $ours/runner.new" | shasum -a 256 --check --quiet
mv "$ours/runner.new" "$ours/runner.tar.gz"
install -o root -g wheel -m 0755 "$here/hooks/job-started.sh" "$here/hooks/job-completed.sh" "$ours/hooks/"
install -o root -g wheel -m 0755 "$here/once.sh" "$ours/"
log=/var/log/actions-runner.log
touch "$log"
chown actions:staff "$log"
plist=/Library/LaunchDaemons/actions-runner.plist
cat >"$plist.new" <<PLIST
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>actions-runner</string>
  <key>UserName</key><string>actions</string>
  <key>ProgramArguments</key><array><string>$ours/once.sh</string></array>
  <key>EnvironmentVariables</key>
  <dict>
    <key>HOME</key><string>$home/job</string>
    <key>PATH</key><string>$path</string>
  </dict>
  <key>StandardOutPath</key><string>$log</string>
  <key>StandardErrorPath</key><string>$log</string>
</dict>
</plist>
PLIST
if cmp -s "$plist.new" "$plist"; then
  rm "$plist.new"
else
  launchctl bootout system/actions-runner 2>/dev/null || true
  mv "$plist.new" "$plist"
  chown root:wheel "$plist"
fi
launchctl print system/actions-runner >/dev/null 2>&1 || launchctl bootstrap system "$plist"
echo "done: open it for a job with ci/runners/open.sh OWNER/REPOSITORY m5"

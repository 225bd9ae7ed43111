#!/usr/bin/env bash
# Makes a GB10 (DGX Spark: Ubuntu, arm64) ready for one-job runners. May run again at any time: it changes what differs.
# Usage: sudo ci/runners/setup-gb10.sh RUNNER.tar.gz SHA256     (both from the releases of actions/runner, linux-arm64)
set -euo pipefail
archive=${1:?the runner archive, actions-runner-linux-arm64-VERSION.tar.gz}
digest=${2:?its SHA-256, from the page of the release}
here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" = 0 ] || { echo "error: run it with sudo" >&2; exit 1; }
[ "$(uname -sm)" = "Linux aarch64" ] || { echo "error: this is $(uname -sm), not a GB10" >&2; exit 1; }

home=/home/actions
ours=/usr/local/lib/actions-runner

echo "== a user in no group but its own, that writes to one folder only: $home/job, which each job gets empty"
id -u actions >/dev/null 2>&1 || useradd --create-home --shell /bin/bash --user-group actions
usermod --groups "" actions
chown root:actions "$home"
chmod 0750 "$home"
install -d -o actions -g actions -m 0700 "$home/job"

echo "== tools"
missing=()
for package in git g++ python3 python3-venv; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
fi
for program in nvidia-smi ncu compute-sanitizer; do
  [ -x "$(command -v "$program" || echo "/usr/local/cuda/bin/$program")" ] ||
    echo "warning: no $program: install CUDA 13.0 or newer from NVIDIA's packages" >&2
done

echo "== GPU counters for every user (ncu); holds after the next start"
conf=/etc/modprobe.d/upstream-patch-counters.conf
line="options nvidia NVreg_RestrictProfilingToAdminUsers=0"
closed() { ! grep -q '^RmProfilingAdminOnly: 0' /proc/driver/nvidia/params 2>/dev/null; }
if closed || [ "$(cat "$conf" 2>/dev/null)" != "$line" ]; then
  echo "$line" >"$conf"
  update-initramfs -u
fi
if closed; then echo "warning: restart the machine, so that the counters open" >&2; fi

echo "== clocks stay as NVIDIA ships them, persistence on: paired measurements need no fixed clock"
nvidia-smi --persistence-mode=1 >/dev/null || echo "warning: persistence mode is not supported here" >&2
nvidia-smi --reset-gpu-clocks >/dev/null 2>&1 || true

echo "== runner, hooks and service"
# root owns all of it and the folders above: no job can change it
install -d -o root -g root -m 0755 "$ours" "$ours/hooks"
install -o root -g root -m 0644 "$archive" "$ours/runner.new"
echo "$digest  $ours/runner.new" | sha256sum --check --quiet
mv "$ours/runner.new" "$ours/runner.tar.gz"
install -o root -g root -m 0755 "$here/hooks/job-started.sh" "$here/hooks/job-completed.sh" "$ours/hooks/"
install -o root -g root -m 0755 "$here/once.sh" "$ours/"
unit=/etc/systemd/system/actions-runner.service
cat >"$unit.new" <<'UNIT'
[Unit]
Description=GitHub Actions runner for one job
After=network-online.target

[Service]
User=actions
Environment=HOME=/home/actions/job PATH=/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin
# as root, since a job may not: the device files that CUDA needs
ExecStartPre=+-/usr/bin/nvidia-modprobe -c 0 -u
ExecStart=/usr/local/lib/actions-runner/once.sh
KillMode=control-group
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths=/home/actions/job
UNIT
if cmp -s "$unit.new" "$unit"; then rm "$unit.new"; else mv "$unit.new" "$unit"; fi
systemctl daemon-reload
echo "done: open it for a job with ci/runners/open.sh OWNER/REPOSITORY gb10"

"""How GitHub is asked: what may be repeated, how long is waited, and what an answer means for the one who asked.

A read may be repeated. A write may not, but where GitHub said that it did nothing: a 502, a lost connection or a slow
answer can hide an issue that was made. githubkit's own retry repeats a POST up to three times, so it is off.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from upstream_patch.errors import UserError

READ_AGAIN_S = (1.0, 4.0)
"""Waits before a read that failed is sent again."""
BUSY_TIMES = 2
"""How often a request is sent again that GitHub had refused for its rate."""
_DIGITS = re.compile(r"[0-9]{1,10}")
LONGEST_WAIT_S = 120.0
"""A longer Retry-After is told to the person."""
BETWEEN_WRITES_S = 1.0


@dataclass(frozen=True)
class Clock:
    """Seconds since the epoch, and waiting; tests give their own."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


class Refused(UserError):
    """GitHub answered that it did not do it: asking again would change nothing."""

    exit_code = 40

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Busy(UserError):
    """GitHub did nothing, for its rate limit; waiting helps."""

    exit_code = 41


class Unclear(UserError):
    """No answer that says whether it was done. It must be looked for before it is sent again."""

    exit_code = 42


class Unreachable(UserError):
    """GitHub was not reached, or a read failed for good: nothing was written."""

    exit_code = 43


def ask(send: Callable[[], Any], clock: Clock, *, writes: bool, what: str) -> Any:
    """``send()``'s response, sent again only where that is safe.

    ``what`` is for the messages, e.g. ``POST /repos/o/r/issues``. Raises Refused, Busy, Unreachable, and for a write
    Unclear.
    """
    import httpx
    from githubkit.exception import RateLimitExceeded, RequestError, RequestFailed, RequestTimeout

    failures = refusals = 0
    while True:
        try:
            response = send()
        except RequestFailed as error:
            status, said = error.response.status_code, _said(error.response)
            if isinstance(error, RateLimitExceeded) or _is_rate(status, said):
                wait_s = 60.0 * 2**refusals  # GitHub's advice where it names no time
                if isinstance(error, RateLimitExceeded):
                    wait_s = error.retry_after.total_seconds()
                if refusals == BUSY_TIMES or wait_s > LONGEST_WAIT_S:
                    raise Busy(
                        f"{what}: GitHub's rate limit ({said}): nothing was written; run it again in {wait_s:.0f} s"
                    ) from None
                refusals += 1
                clock.sleep(wait_s)
                continue
            if status < 500 and status != 408:
                raise Refused(f"{what}: GitHub refused, {status}: {said}{_way_out(status, said)}", status) from None
            trouble = f"{what}: GitHub answered {status}"
        except (RequestTimeout, RequestError) as error:
            if isinstance(error.exc, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol):
                raise Unreachable(f"{what}: no connection to GitHub ({error.exc}): nothing was written") from None
            slow = isinstance(error, RequestTimeout)
            trouble = f"{what}: {'no answer in time' if slow else 'the connection was lost'}"
        else:
            if response.status_code in (301, 302, 307, 308):  # followed, a write could end in another repository
                raise Refused(f"{what}: the repository has moved: give its new name", response.status_code)
            return response
        if writes:
            raise Unclear(f"{trouble}: it may have been done all the same")
        if failures == len(READ_AGAIN_S):
            raise Unreachable(f"{trouble}, {failures + 1} times: nothing was written; try again later")
        clock.sleep(READ_AGAIN_S[failures])
        failures += 1


def tell_wait(headers: MutableMapping[str, str], clock: Clock) -> None:
    """Make Retry-After whole seconds, and take away what names no time to come: githubkit reads digits and no more.

    The header may be a date, and between here and GitHub anything may answer in its place.
    """
    if (said := headers.get("retry-after")) is not None:
        wait_s = _seconds(said, clock)
        if wait_s is None:
            del headers["retry-after"]
        else:
            headers["retry-after"] = str(wait_s)
    if not _DIGITS.fullmatch(headers.get("x-ratelimit-reset", "0")):
        del headers["x-ratelimit-reset"]


def _seconds(said: str, clock: Clock) -> int | None:
    if _DIGITS.fullmatch(said.strip()):
        return int(said)
    try:
        left_s = parsedate_to_datetime(said).timestamp() - clock.now()
    except (ValueError, OverflowError):
        return None
    return math.ceil(left_s) if left_s > 0 else None


def _said(response: Any) -> str:
    """GitHub's own words, with those of each error."""
    try:
        answer = response.json()
    except ValueError:
        return "no reason given"
    if not isinstance(answer, dict):
        return "no reason given"
    errors = answer.get("errors")
    details = [
        str(error.get("message") or f"{error.get('field')} {error.get('code')}") if isinstance(error, dict) else error
        for error in (errors if isinstance(errors, list) else [])
    ]
    return "; ".join(str(part) for part in (answer.get("message", "no reason given"), *details))


def _is_rate(status: int, said: str) -> bool:
    return status == 429 or (status == 403 and "rate limit" in said.lower())


def _way_out(status: int, said: str) -> str:
    """What a person can do about it."""
    words = said.lower()
    if status == 401:
        return ": the token is not valid: make a new one"
    if status == 410:
        return ": issues are switched off there: a fork's owner switches them on in its settings"
    if status == 403 and any(hint in words for hint in ("limited", "interaction", "restrict", "permission")):
        return (
            ": the repository limits who may write there (interaction limits, or the token lacks the right): "
            "asking again changes nothing; ask a maintainer where the work may be shown"
        )
    if status == 404:
        return ": no such repository or branch, or the token may not see it"
    return ""

"""A browser without a window, for what only a browser knows: whether a page draws, fits and keeps to itself."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "FASTADV_BROWSER"

_QUIET = (
    "--headless=new",
    # As root, where a container has no user namespaces, there is no sandbox to be had.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    # Nothing outside is found, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)


class Seen(NamedTuple):
    """What the browser said."""

    output: str
    """the document after loading, where it was asked for"""
    console: List[str]
    """messages of the page's console: errors, warnings, refusals, and what its scripts log"""


def find_browser() -> Optional[str]:
    """The browser that FASTADV_BROWSER names, or Chromium or Chrome on the PATH; None where there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named) or named
    return next(filter(None, map(shutil.which, NAMES)), None)


def open_page(browser: str, page: Path, arguments: Sequence[str] = ("--dump-dom",), timeout_s: float = 120.0) -> Seen:
    """Loads a file in a new profile.

    Raises:
        subprocess.SubprocessError: the browser fails, or takes longer than ``timeout_s``.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *_QUIET, f"--user-data-dir={profile}", *arguments, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True, errors="replace")
    return Seen(done.stdout, re.findall(r":CONSOLE[:(]\d+\)?\] (.*)", done.stderr))

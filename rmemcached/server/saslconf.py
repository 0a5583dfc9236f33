"""Where SASL (-S) is configured: memcached.conf in a folder, and memcached's file of passwords.

The search is memcached's (sasl_defs.c). A missing file is an error here: libsasl2 without a file offers each installed
mechanism, ANONYMOUS too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rmemcached.server.sockets import ServerError

NAME = "memcached.conf"
FOLDERS = ("/etc/sasl", "/etc/sasl2")
INSTEAD = "(-S is SASL; users and passwords in a file without SASL: -Y <file>)"
"""For errors: -S may have been taken for -Y."""


def named_folders(given: str) -> tuple[str, list[str]]:
    """(folders, files to be read) of SASL_CONF_PATH: folders with colons in between. A path of the file itself means
    its folder; libsasl2 alone would find nothing there."""
    folders = [os.path.dirname(path) if os.path.isfile(path) else path for path in given.split(":")]
    return ":".join(folders), [os.path.abspath(os.path.join(folder, NAME)) for folder in folders]


def default_folder() -> tuple[str | None, list[str]]:
    """(folder, files looked for): memcached's places."""
    looked = []
    for folder in FOLDERS:
        inner = os.path.join(folder, NAME)
        for path in (os.path.join(inner, NAME), inner):
            looked.append(path)
            if os.path.isfile(path):
                return os.path.dirname(path), looked
    return None, looked


def find(environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(folder of memcached.conf, file of passwords); at least one is there. Raises ServerError."""
    passwords = environment.get("MEMCACHED_SASL_PWDB")
    given = environment.get("SASL_CONF_PATH")
    if passwords is not None and not os.access(passwords, os.R_OK):
        raise ServerError(f"SASL: MEMCACHED_SASL_PWDB={passwords} cannot be read {INSTEAD}", os.EX_CONFIG)
    folder: str | None
    if given:
        folder, looked = named_folders(given)
        if not any(map(os.path.isfile, looked)):
            folder = None
    else:
        folder, looked = default_folder()
    if folder is None and passwords is None:
        named = f" (SASL_CONF_PATH={given})" if given else ", and SASL_CONF_PATH is not set"
        raise ServerError(
            f"SASL: there is no configuration: looked for {', '.join(looked)}{named} {INSTEAD}", os.EX_CONFIG
        )
    return folder, passwords

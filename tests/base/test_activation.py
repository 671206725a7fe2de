# SPDX-License-Identifier: Apache-2.0
"""Sockets that somebody else opened for this process, as systemd passes them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from nodeagent.base import activation

# the child is who the variable names: exec keeps the number of the process
CHILD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, "-c", '''
import os
from nodeagent.base import activation
(sock,) = activation.passed(os.environ)
print(sock.getsockname()[1], sock.getblocking(), sock.get_inheritable())
'''])
"""


def test_a_passed_socket_is_found_by_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.fileno()
        command = [sys.executable, "-c", CHILD, str(number)]
        done = subprocess.run(command, pass_fds=[number], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(server.getsockname()[1]), "False", "False"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": str(os.getpid())},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"},
    ],
)
def test_what_was_passed_to_another_process_is_left_alone(environ: dict[str, str]) -> None:
    assert activation.passed(environ) == ()

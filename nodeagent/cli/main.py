# SPDX-License-Identifier: Apache-2.0
"""Runs one command: exit codes, and errors as two lines. Results are printed on stdout, messages on stderr.

Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 a problem was found.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from nodeagent.base import hints
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.base.timeouts import Timeouts
from nodeagent.cli import output, parser


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors that users can fix are printed without a traceback."""
    options = parser.parser(arguments).parse_args(arguments)
    try:
        options.timeouts = Timeouts.from_environ(os.environ)
        return int(options.run(options))
    except ConfigError as error:
        return _complain(error, output.USAGE)
    except NodeagentError as error:
        return _complain(error, output.FAILED)
    except BrokenPipeError:  # the reader has closed the pipe
        return output.FINE
    except OSError as error:
        what = f"{error.filename}: {hints.strerror(error)}" if error.filename else hints.strerror(error)
        return _complain(NodeagentError(what, hints.for_errno(error, "read")), output.FAILED)
    except KeyboardInterrupt:
        return output.FAILED


def _complain(error: NodeagentError, code: int) -> int:
    """Print the error; below systemd with the priority "err", so that ``journalctl -p err`` finds it."""
    from nodeagent.base.systemd import is_journal

    output.print_message(f"nodeagent: {error.lines()}", "<3>" if is_journal(os.environ, sys.stderr) else "")
    return code

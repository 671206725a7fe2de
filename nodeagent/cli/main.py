# SPDX-License-Identifier: Apache-2.0
"""The command line: exit codes, and errors as two lines. Answers go to stdout, messages to stderr.

Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 something is wrong on the node.
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
    """Run one command; return its exit code. Never shows a traceback for an error that a user can mend."""
    options = parser.parser(arguments).parse_args(arguments)
    try:
        options.timeouts = Timeouts.from_environ(os.environ)
        return int(options.run(options))
    except ConfigError as error:
        return _complain(error, output.USAGE)
    except NodeagentError as error:
        return _complain(error, output.FAILED)
    except BrokenPipeError:  # the reader has seen enough
        return output.FINE
    except OSError as error:
        what = f"{error.filename}: {hints.strerror(error)}" if error.filename else hints.strerror(error)
        return _complain(NodeagentError(what, hints.for_errno(error, "read")), output.FAILED)
    except KeyboardInterrupt:
        return output.FAILED


def _complain(error: NodeagentError, code: int) -> int:
    """Below systemd with the priority of an error: a daemon that does not start is found with ``-p err``."""
    from nodeagent.base.systemd import is_journal

    output.print_message(f"nodeagent: {error.lines()}", "<3>" if is_journal(os.environ, sys.stderr) else "")
    return code

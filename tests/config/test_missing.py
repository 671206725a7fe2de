# SPDX-License-Identifier: Apache-2.0
"""What is not where it is looked for: a file behind a link, one of the right name, a name of the node."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.policy import merge
from tests.facts import names


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory of the configuration."""
    (made := tmp_path / "etc/nodeagent").mkdir(parents=True)
    return made


def loaded(home: Path) -> config.Settings:
    return config.load(config.Sources(str(home.parent.parent), {}, {}))


def labels(home: Path) -> dict[str, str]:
    return dict(merge.merge(loaded(home).configuration).labels)


def test_a_link_that_leads_nowhere_is_an_error_and_not_the_defaults(home: Path) -> None:
    (home / "config.yaml").symlink_to("absent")
    with pytest.raises(ConfigError) as caught:
        loaded(home)
    names(caught.value.what, "link", "absent")


@pytest.mark.parametrize("name", ["config.yml", "config.json"])
def test_a_file_that_is_not_read_for_its_name_is_a_warning(home: Path, name: str) -> None:
    (home / name).write_text("timing: {settle: 5s}\n")
    (warning,) = loaded(home).warnings
    names(warning, f"{home}/{name}", "config.yaml")


def test_the_node_has_the_name_of_the_host_unless_another_is_given(home: Path) -> None:
    assert labels(home) == {merge.HOSTNAME: platform.node().lower()}
    (home / "config.yaml").write_text("node: {name: node7}\n")
    assert labels(home) == {merge.HOSTNAME: "node7"}


def test_checking_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        config.check_file(str(tmp_path / "absent.yaml"))
    (tmp_path / "empty.yaml").touch()
    assert config.check_file(str(tmp_path / "empty.yaml")).configuration.rules == ()

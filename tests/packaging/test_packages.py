# SPDX-License-Identifier: Apache-2.0
"""The packages as files: the same bytes from the same source, what is in them, and what the lints say."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builder import release, texts, vendoring

from nodeagent import config
from tests.packaging import building
from tests.packaging.building import ROOT, Packages


def digests(packages: Packages) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in packages.files]


@pytest.fixture(scope="session")
def unpacked(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of both .deb packages."""
    folder = tmp_path_factory.mktemp("unpacked")
    for deb in (packages.deb, packages.demo_deb):
        subprocess.run(["dpkg-deb", "--extract", str(deb), str(folder)], check=True)
    return folder


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_two_builds_are_the_same_bytes_whatever_the_umask_and_the_name_of_the_machine(
    packages: Packages, tmp_path: Path
) -> None:
    elsewhere = 'umask 077; hostname elsewhere; exec "$@"'
    again = building.build(tmp_path / "again", under=("unshare", "--uts", "sh", "-c", elsewhere, "sh"))
    assert digests(again) == digests(packages)


def test_the_checksums_are_those_of_the_packages(packages: Packages) -> None:
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=packages.deb.parent,
        capture_output=True,
        check=True,
    )
    assert done.stdout.count(b": OK") == 5


def test_packages_and_checksums_are_signed_with_a_key_that_the_build_is_given(tmp_path: Path) -> None:
    def run(*command: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, check=True, env=environ, cwd=tmp_path
        )
        return (done.stdout + done.stderr).decode()

    environ = {"GNUPGHOME": str(tmp_path / "gpg"), "PATH": "/usr/bin:/bin"}
    (tmp_path / "gpg").mkdir(mode=0o700)
    run(
        "gpg",
        "--batch",
        "--passphrase",
        "",
        "--quick-gen-key",
        "release@example.com",
        "rsa2048",
        "sign",
        "never",
    )
    for name, what in (("secret.asc", "--export-secret-keys"), ("public.asc", "--export")):
        run("gpg", "--batch", "--armor", "--output", name, what)
    run("gpgconf", "--kill", "gpg-agent")
    made = building.build(tmp_path / "dist", key=tmp_path / "secret.asc")
    run("rpm", "--dbpath", str(tmp_path / "rpmdb"), "--import", "public.asc")
    checked = run("rpm", "--dbpath", str(tmp_path / "rpmdb"), "--checksig", str(made.rpm))
    assert "digests signatures OK" in checked
    for member in ("_gpgorigin", "debian-binary", "control.tar.gz", "data.tar.xz"):
        content = subprocess.run(["ar", "p", str(made.deb), member], capture_output=True, check=True).stdout
        (tmp_path / member).write_bytes(content)
    parts = b"".join(
        (tmp_path / name).read_bytes() for name in ("debian-binary", "control.tar.gz", "data.tar.xz")
    )
    assert "Good signature" in run("gpg", "--verify", "_gpgorigin", "-", stdin=parts)
    sums = str(made.deb.parent / "SHA256SUMS")
    assert "Good signature" in run("gpg", "--verify", f"{sums}.asc", sums)
    assert not list(Path("/tmp").glob("nodeagent-key-*"))


def test_both_formats_hold_the_same_code(packages: Packages) -> None:
    def code(command: list[str], start: str) -> set[str]:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return {path.removeprefix(".").rstrip("/") for path in listed if path.startswith(start)}

    for deb, rpm in ((packages.deb, packages.rpm), (packages.demo_deb, packages.demo_rpm)):
        ours = code(["dpkg-deb", "--contents", str(deb)], "./usr/lib/nodeagent/")
        theirs = code(["rpm", "--query", "--list", "--package", str(rpm)], "/usr/lib/nodeagent/")
        assert {path for path in ours if path != "/usr/lib/nodeagent"} == theirs


def test_nothing_in_the_packages_is_compiled_or_tells_where_it_was_built(unpacked: Path) -> None:
    kinds = {path.suffix for path in files(unpacked / "usr/lib/nodeagent")}
    assert kinds & {".so", ".pyc", ".h"} == set()
    places = (str(ROOT).encode(), b"nodeagent-packages-")
    told = [path for path in files(unpacked) if any(place in content(path) for place in places)]
    assert told == []


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_what_was_left_out_is_imported_by_nothing(unpacked: Path) -> None:
    importing = re.compile(r"^(import|from) (certifi|tzdata)\b", re.MULTILINE)
    modules = [path for path in files(unpacked / "usr/lib/nodeagent") if path.suffix == ".py"]
    assert [path for path in modules if importing.search(path.read_text())] == []


def test_the_client_of_the_kubernetes_api_works_with_what_is_left_of_it(unpacked: Path) -> None:
    (code,) = (unpacked / "usr/lib/nodeagent").iterdir()
    script = "from nodeagent.cluster import kube_client; print(kube_client.kubernetes().client.__name__)"
    command = [sys.executable, "-B", "-P", "-S", "-s", "-c", script]
    environ = {"PYTHONPATH": str(code)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (done.stdout, done.stderr) == ("ApiClient\n", "")


def test_every_library_is_named_among_the_notices(unpacked: Path) -> None:
    notices = content(unpacked / "usr/share/doc/nodeagent/third-party-notices.gz").decode()
    notices = notices.lower().replace("_", "-")
    pins = [block.split(" ")[0].replace("==", " ") for block in vendoring.requirements().values()]
    assert [pin for pin in pins if f"\n{pin} (" not in f"\n{notices}"] == []


def test_a_page_in_the_package_links_only_to_pages_in_the_package(unpacked: Path) -> None:
    pages = list((unpacked / "usr/share/doc/nodeagent").glob("*.md.gz"))
    links = {link for page in pages for link in re.findall(r"\]\(([\w-]+\.md)", content(page).decode())}
    assert "packaging.md" in links
    assert links - {page.name.removesuffix(".gz") for page in pages} == set()


def test_the_man_page_has_every_verb_and_setting_and_is_well_formed(unpacked: Path) -> None:
    page = unpacked / "usr/share/man/man8/nodeagent.8.gz"
    command = ["man", "--warnings", "--encoding=UTF-8", "--local-file", str(page)]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"MANWIDTH": "200", "PATH": "/usr/bin:/bin"}
    )
    assert shown.stderr == ""
    keys = [setting.key for setting in config.SETTINGS if not setting.obsolete]
    for word in ("explain", "DEVICE", *keys):
        assert word in shown.stdout


SHELLS = {
    "bash": "source /usr/share/bash-completion/bash_completion; source {}; "
    "COMP_WORDS=(nodeagent {}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
    '$(complete -p nodeagent | sed -E "s/.*-F ([^ ]+) .*/\\1/"); echo "${{COMPREPLY[@]}}"',
    "fish": "source {}; complete --do-complete 'nodeagent {}'",
}


@pytest.mark.parametrize(("typed", "offered"), [("exp", "explain"), ("run --timing-se", "--timing-settle")])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_and_settings(unpacked: Path, shell: str, typed: str, offered: str) -> None:
    script = SHELLS[shell].format(unpacked / texts.COMPLETIONS[shell], typed)
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=False)
    assert offered in done.stdout.split(), done.stderr


def test_zsh_accepts_its_completion(unpacked: Path) -> None:
    subprocess.run(["zsh", "-n", str(unpacked / texts.COMPLETIONS["zsh"])], check=True)


def test_lintian_finds_nothing(packages: Packages) -> None:
    strict = ("--allow-root", "--fail-on", "error,warning")
    command = ["lintian", *strict, str(packages.deb), str(packages.demo_deb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_rpmlint_finds_nothing(packages: Packages) -> None:
    rules = str(ROOT / "packaging/rpm/rpmlint.toml")
    command = ["rpmlint", "--config", rules, str(packages.rpm), str(packages.demo_rpm)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "0 errors, 0 warnings" in done.stdout, done.stdout


def test_checksums_that_nobody_signed_have_no_signature_of_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS.asc").write_text("of another build")
    (tmp_path / "an archive").write_text("of another target")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  an archive\n{'0' * 64}  gone\n")
    building.build(tmp_path)
    assert not (tmp_path / "SHA256SUMS.asc").exists()
    done = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stdout.count(b": OK") == 6


def test_a_key_that_does_not_sign_is_told_in_two_lines(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    with pytest.raises(release.NoSignature) as raised:
        release.finish(tmp_path, [], tmp_path / "key")
    assert len(str(raised.value).splitlines()) == 2

"""Edits of files that others own too: ours go in and come out again, theirs stay."""

from __future__ import annotations

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import config_line, text_edit
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import read_environment_file
from ansible_collections.clusterctl.hpc.plugins.module_utils.text_edit import EditError, Environment

BASE = "/usr/local/bin:/usr/bin:/bin"


def hosts(text: str, *lines: str) -> str:
    return text_edit.set_hosts(text, "hosts", "".join(f"{line}\n" for line in lines))


def environment(text: str, *folders: str, **variables: str) -> str:
    return text_edit.set_environment(text, Environment({"PATH": folders}, variables, {"PATH": BASE}))


def values(text: str) -> dict[str, str]:
    """The variables as the probe, and so pam_env, reads them."""
    return read_environment_file(text)


# --- blocks ---


@pytest.mark.parametrize("text", ["", "a\n", "a", "a\r\nb\r\n", "\n\n", "\x0c a\n", "\udcff\n"])
def test_a_block_can_be_put_in_changed_and_taken_out(text: str) -> None:
    with_block = text_edit.set_block(text, "m", "x\ny\n")
    assert text_edit.set_block(with_block, "m", "x\ny\n") == with_block
    changed = text_edit.set_block(with_block, "m", "z\n")
    assert text_edit.set_block(changed, "m", "x\ny\n") == with_block
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    assert text_edit.set_block(with_block, "m", "") == ended


def test_a_block_keeps_its_place_and_knows_no_other_block() -> None:
    text = "a\n# BEGIN clusterctl m\nold\n# END clusterctl m\nb\n# BEGIN clusterctl mm\nx\n# END clusterctl mm\n"
    assert text_edit.set_block(text, "m", "new\n") == text.replace("old", "new")


def test_a_block_at_an_end_without_newline_leaves_it_so() -> None:
    text = "a\n# BEGIN clusterctl m\nold\n# END clusterctl m"
    assert text_edit.set_block(text, "m", "new\n") == "a\n# BEGIN clusterctl m\nnew\n# END clusterctl m"


def test_a_content_that_holds_the_marker_is_refused() -> None:
    with pytest.raises(EditError, match="own marker"):
        text_edit.set_block("", "m", "# END clusterctl m\n")


CONTROLS = ["\r", "\0", "\x0b", "\x0c", "\x1b[2J", "\x7f", "\x85", "\u2028"]


@pytest.mark.parametrize("letter", CONTROLS)
def test_a_content_with_a_control_character_is_refused_with_its_line(letter: str) -> None:
    with pytest.raises(EditError, match=r"line 2 of block 'm' is 'b.*that the line cannot hold") as caught:
        text_edit.set_block("", "m", f"a\nb{letter}evil\nc\n")
    assert str(caught.value).isprintable()


def test_tabs_and_endings_of_other_systems_are_content() -> None:
    assert text_edit.set_block("", "m", "a\tb\r\nc\r\n") == "# BEGIN clusterctl m\na\tb\nc\n# END clusterctl m\n"


# --- /etc/hosts ---

DEBIAN = "127.0.0.1\tlocalhost\n127.0.1.1\tnode1.example.org node1\n\n::1     ip6-localhost ip6-loopback\n"


def test_the_installers_line_no_longer_holds_a_name_of_the_block() -> None:
    text = hosts(DEBIAN, "10.0.0.1 node1.example.org node1", "10.0.0.2 node2")
    live = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert [words[0] for words in live if "node1" in words] == ["10.0.0.1"]
    assert "127.0.0.1\tlocalhost\n" in text
    assert hosts(text, "10.0.0.1 node1.example.org node1", "10.0.0.2 node2") == text


def test_names_are_compared_without_case() -> None:
    assert hosts("127.0.1.1 GPU01\n", "10.0.0.1 gpu01").startswith(
        "# clusterctl hosts took names from: 127.0.1.1 GPU01"
    )
    with pytest.raises(EditError, match="'GPU01' has two addresses"):
        hosts("", "10.0.0.1 gpu01", "10.0.0.2 GPU01")


def test_a_line_keeps_the_names_that_the_block_does_not_need() -> None:
    text = hosts("127.0.0.1 localhost node1 # mine", "10.0.0.1 node1")
    assert "127.0.0.1\tlocalhost\n" in text.splitlines(keepends=True)
    assert hosts(text, "10.0.0.1 node1") == text


def test_a_line_comes_back_when_the_block_goes() -> None:
    for original in (DEBIAN, "127.0.0.1 localhost node1 # mine\n10.9.9.9 node2\n"):
        there = hosts(original, "10.0.0.1 node1.example.org node1", "10.0.0.2 node2")
        assert hosts(there) == original


def test_a_line_is_judged_anew_when_the_members_change() -> None:
    original = "127.0.1.1 node1 extra\n"
    once = hosts(original, "10.0.0.1 node1")
    twice = hosts(once, "10.0.0.1 node1", "10.0.0.9 extra")
    assert twice == hosts(original, "10.0.0.1 node1", "10.0.0.9 extra")
    assert hosts(twice, "10.0.0.1 node1") == once


def test_a_line_with_the_same_address_is_left_alone() -> None:
    original = "10.0.0.1 node1 db\n"
    assert hosts(original, "10.0.0.1 node1").startswith(original)


def test_two_addresses_for_one_name_are_refused() -> None:
    with pytest.raises(EditError, match="'node1' has two addresses"):
        hosts("", "10.0.0.1 node1", "10.0.0.2 node1")


# --- /etc/environment ---

THEIRS = '# by the site\nPATH="/opt/site/bin:/usr/bin"\nLANG=de_DE.UTF-8\nOMP_NUM_THREADS=8\n'


def test_ours_go_behind_theirs_and_a_second_time_changes_nothing() -> None:
    text = environment(THEIRS, "/x/bin", "/y/bin")
    assert values(text)["PATH"] == "/opt/site/bin:/usr/bin:/x/bin:/y/bin"
    assert text.startswith("# by the site\n")
    assert "LANG=de_DE.UTF-8\n" in text
    assert environment(text, "/x/bin", "/y/bin") == text


def test_a_file_without_a_path_gets_a_whole_one() -> None:
    assert values(environment("", "/x/bin"))["PATH"] == f"{BASE}:/x/bin"


def test_what_an_earlier_release_put_first_goes_behind() -> None:
    old = 'PATH="/x/bin:/opt/site/bin:/usr/bin"\nLD_LIBRARY_PATH="/x/lib"\n'
    notes = "".join(f"# clusterctl: {note}\n" for note in ("added PATH /x/bin", "created LD_LIBRARY_PATH"))
    text = environment(f"{old}{notes}# clusterctl: added LD_LIBRARY_PATH /x/lib\n", "/x/bin")
    assert values(text) == {"PATH": "/opt/site/bin:/usr/bin:/x/bin"}
    assert environment(text) == 'PATH="/opt/site/bin:/usr/bin"\n'


@pytest.mark.parametrize(
    ("line", "theirs"),
    [
        ("PATH='/opt/a:/usr/bin'", "/opt/a:/usr/bin"),
        ('PATH="/opt/a:/usr/bin" # by the site', "/opt/a:/usr/bin"),
        ("PATH=/old\nPATH=/opt/a:/usr/bin", "/opt/a:/usr/bin"),  # the last one counts
        ('export PATH="/usr/bin', "/usr/bin"),
    ],
)
def test_ours_stand_behind_a_line_of_any_form(line: str, theirs: str) -> None:
    text = environment(f"{line}\n", "/x/bin")
    assert values(text)["PATH"] == f"{theirs}:/x/bin"
    assert values(environment(text))["PATH"] == theirs


def test_what_is_no_longer_wanted_goes_and_theirs_stays() -> None:
    both = environment(THEIRS, "/x/bin", "/y/bin", A="1")
    one = environment(both, "/y/bin")
    assert values(one) == {"PATH": "/opt/site/bin:/usr/bin:/y/bin", "LANG": "de_DE.UTF-8", "OMP_NUM_THREADS": "8"}
    assert values(environment(one)) == values(THEIRS)
    assert environment(environment("", "/x/bin", A="1")) == ""


def test_a_folder_that_was_theirs_before_is_theirs_after() -> None:
    text = environment('PATH="/usr/bin:/x/bin"\n', "/x/bin")
    assert values(text)["PATH"] == "/usr/bin:/x/bin"
    assert "/x/bin" in values(environment(text))["PATH"].split(":")


def test_what_others_added_since_stays_when_ours_goes() -> None:
    text = environment("", "/x/bin").replace('PATH="', 'PATH="/new/bin:')
    assert values(environment(text))["PATH"] == f"/new/bin:{BASE}"


def test_a_variable_that_was_replaced_comes_back() -> None:
    text = environment(THEIRS, OMP_NUM_THREADS="1")
    assert values(text)["OMP_NUM_THREADS"] == "1"
    again = environment(text, OMP_NUM_THREADS="2")
    assert values(again)["OMP_NUM_THREADS"] == "2"
    assert environment(again) == THEIRS


def test_lines_that_need_no_change_keep_every_byte() -> None:
    odd = "  export  X = 1\r\n\r\nPATH='/x/bin:/usr/bin'\n\udcff=y\r\n"
    assert environment(odd, "/x/bin").partition("# clusterctl")[0] == odd


@pytest.mark.parametrize("end", ["\r\n", " \n", "\t# by the site\n"])
def test_lines_of_ours_lose_what_pam_takes_for_a_part_of_the_value(end: str) -> None:
    """Linux-PAM 1.5.2 gives a session ``/usr/bin"`` and the carriage return, or the blank, of such a line."""
    text = f'A=1{end}PATH="/x/bin:/usr/bin"{end}B="2"{end}'
    once = environment(text, "/x/bin", B="2")
    assert once.startswith(f'A=1{end}PATH="/x/bin:/usr/bin"\nB="2"\n')
    assert "\r" not in once.partition("\n")[2]
    assert environment(once, "/x/bin", B="2") == once
    assert "\r" not in text_edit.set_block("a\r\n# BEGIN clusterctl m\r\nx\r\n# END clusterctl m\r\n", "m", "x")[3:]
    assert "\r" not in hosts("127.0.1.1 node1 a\r\n", "10.0.0.1 node1").rpartition("\r\n")[2]


@pytest.mark.parametrize(
    ("folders", "variables", "words"),
    [
        (["bin"], {}, "'bin' is not an absolute path"),
        (["/a:/b"], {}, "without ':'"),
        ([], {"A": "x\ny"}, "newline"),
        *(([], {"A": f"x{letter}y"}, "that the line cannot hold") for letter in CONTROLS),
        *(([f"/x{letter}y"], {}, "that the line cannot hold") for letter in CONTROLS),
        ([], {"A": "x#y"}, "takes for a comment"),
        ([], {"A": '"x"'}, "begins or ends with"),
        ([], {"A B": "x"}, "'A B' is not a valid name of a variable"),
        (["/x"], {"PATH": "y"}, "both as a list of folders and as a variable"),
        ([], {"A": "x" * 1100}, "longer than the 1023 bytes"),
    ],
)
def test_what_the_file_cannot_carry_is_refused(folders: list[str], variables: dict[str, str], words: str) -> None:
    with pytest.raises(EditError, match=words):
        environment("", *folders, **variables)


@pytest.mark.parametrize("base", ["/bin\nLD_PRELOAD=/tmp/evil.so", "/bin\0", '/bin"', "/bin#"])
def test_an_initial_list_that_the_file_cannot_carry_is_refused(base: str) -> None:
    with pytest.raises(EditError, match="PATH"):
        text_edit.set_environment("", Environment({"PATH": ["/x/bin"]}, {}, {"PATH": base}))


# --- lines of configuration files: a value stays within its line and its quotes, or is refused by name ---


@pytest.mark.parametrize(
    ("value", "telling"),
    [
        ("a\nb", "a newline"),
        ("a\rb", "a carriage return"),
        ("a\0b", "a NUL"),
        ("a\x1b[2Jb", "a control character"),
        ("a\x7f", "a control character"),
        ("a\tb", "a control character"),
        ("a\x85b", "a control character"),
        ("a\u2028b", "a control character"),
    ],
)
def test_a_value_that_would_leave_its_line_is_refused_by_name(value: str, telling: str) -> None:
    with pytest.raises(config_line.LineError) as caught:
        config_line.checked(value, "NCCL_SOCKET_IFNAME in /etc/nccl.conf")
    said = str(caught.value)
    assert said.startswith("NCCL_SOCKET_IFNAME in /etc/nccl.conf is ")
    assert telling in said
    assert said.isprintable()


def test_quotes_are_refused_where_the_file_has_quotes() -> None:
    assert config_line.checked("it's", "a field") == "it's"
    for value in ('a"b', "a\\b"):
        with pytest.raises(config_line.LineError, match=r"a (?:quote|backslash)"):
            config_line.checked(value, "a field", refused='"\\')


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(config_line.LineError) as caught:
        config_line.checked("x" * 5000 + "\n", "a field")
    assert len(str(caught.value)) < 250


def test_words_of_people_pass() -> None:
    for value in ("", "eth0", "a b", "größe", "\udcff", "10.0.0.0/24,10.1.0.0/24", "A=b"):
        assert config_line.checked(value, "a field") == value

"""`awk` of the emulated shell: programs, and what mawk and gawk print for them alike."""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from just_bash import Bash

from services.sandbox_manager.emulated.awk.lexer import AwkError
from services.sandbox_manager.emulated.awk.parser import parse
from services.sandbox_manager.emulated.commands import known_commands

LINES = "a 3 x\nb 9 y\na 4 x\nc 12 z\n"
COMMANDS = known_commands()


def run(command: str, **files: str) -> Any:
    paths: dict[str, str | bytes] = {"/in": LINES, **{f"/{name}": content for name, content in files.items()}}
    return asyncio.run(Bash(commands=COMMANDS, files=paths).exec(command))


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("$2 > 5", "b 9 y\nc 12 z\n"),
        ("NR==2 {print $1, $NF}", "b y\n"),
        ('$1=="a" && $2>3', "a 4 x\n"),
        ("$1 ~ /^[ab]$/ {n++} $1 !~ /a/ {m++} END {print n, m}", "3 2\n"),
        ("!seen[$1]++", "a 3 x\nb 9 y\nc 12 z\n"),
        ('{s[$1]+=$2} END {print s["a"], s["b"], s["none"]}', "7 9 \n"),
        ("{n[$1]++} END {for (k in n) t = t k n[k]; print length(t), n[\"a\"]}", "6 2\n"),
        ("{a[NR]=$0} END {for (i=NR;i>0;i--) print a[i]}", "c 12 z\na 4 x\nb 9 y\na 3 x\n"),
        ("/b/,/c/ {print NR}", "2\n3\n4\n"),
        ("{m=$2>m?$2:m} END {print m}", "12\n"),
        ('{split($0,p," "); print p[2]}', "3\n9\n4\n12\n"),
        ('{$2=""; print; exit}', "a  x\n"),
        ("{NF=1; $3=\"q\"; print; print NF; exit}", "a  q\n3\n"),
        ('{print ($2>5)?"big":"small"}', "small\nbig\nsmall\nbig\n"),
        ("{gsub(/[a-b]/,\"<&>\"); print} ", "<a> 3 x\n<b> 9 y\n<a> 4 x\nc 12 z\n"),
        ("{if ($2>9) print \"x\"; else if ($2>3) print \"y\"; else {print \"z\"}}", "z\ny\ny\nx\n"),
        ("NR==1 {getline; print} NR==3 {getline x; print x, $1}", "b 9 y\nc 12 z a\n"),
        ("END {print NR, $0, NF}", "4 c 12 z 3\n"),
        ("NR==2 {exit 3} {print} END {print \"end\"}", "a 3 x\nend\n"),
        ("BEGIN {while ((getline line < \"/in\") > 0) n++; print n}", "4\n"),
        ("BEGIN {print -2^2, 2^3^2, !0, !\"a\", 7%3, 1/4, 1e6, 0.1+0.2}", "-4 512 1 0 1 0.25 1000000 0.3\n"),
        ('BEGIN {print 10<9, "10"<"9", "a"<"b", 1==1.0}', "0 1 1 1\n"),
        ('BEGIN {print "a" "b" 1+2 "c", 1 " " -1}', "ab3c 1-1\n"),
        ('BEGIN {printf "%5.2f|%-5s|%05d|%x|%c%c|%*d|%%\\n", 3.14159, "ab", 42, 255, 65, "hi", 4, 7}',
         " 3.14|ab   |00042|ff|Ah|   7|%\n"),
        ('BEGIN {print substr("hello",2,3), substr("hello",0), index("hello","l"), length("日本")}', "ell hello 3 2\n"),
        ('BEGIN {if (match("foobar",/o+/)) print RSTART, RLENGTH; print match("x",/z/), RLENGTH}', "2 2\n0 -1\n"),
        ('BEGIN {s="aaa"; print gsub(/a/,"b&",s), s; t="x.y"; sub(/\\./,"\\\\&",t); print t}', "3 bababa\nx&y\n"),
        ('BEGIN {n=split("a1b22c",p,/[0-9]+/); print n, p[3]; print split("",q), split("  a b ",r)}', "3 c\n0 2\n"),
        ("function f(n) {return n<2?1:n*f(n-1)} BEGIN {print f(10)}", "3628800\n"),
        ("function h(a) {k(a)} function k(b) {b[\"z\"]=1} BEGIN {h(y); for (i in y) print i}", "z\n"),
        ("function r(n,  l) {l=n; if (n>0) r(n-1); return l} BEGIN {print r(3)}", "3\n"),
        ('BEGIN {a[1,2]=3; for (k in a) {split(k,p,SUBSEP); print p[1], p[2]}; print ((1,2) in a), (3 in a)}',
         "1 2\n1 0\n"),
        ("BEGIN {while (i<4) {i++; if (i==2) continue; if (i==4) break; print i}; do j++; while (j<5); print j}",
         "1\n3\n5\n"),
        ('BEGIN {$0 = "p q r"; print $2, NF; OFS="-"; $1=$1; print}', "q 3\np-q-r\n"),
        ('BEGIN {x = "A"; y = x++; print x, y; i=5; print i++ + ++i}', "1 0\n12\n"),
        ("BEGIN {print toupper(\"ab\") tolower(\"CD\"), int(-3.9), 2**3}", "ABcd -3 8\n"),
        ("BEGIN {x; if (!x && x == 0 && x == \"\") print \"unset\"}", "unset\n"),
        ("BEGIN {print 1 > \"/dev/stdout\"; print \"b\\ta\" | \"cat\"; print \"z\"}", "1\nz\nb\ta\n"),
        ("BEGIN {print \"w\" > \"/o\"; close(\"/o\"); getline l < \"/o\"; print l}", "w\n"),
    ],
)  # fmt: skip
def test_a_program_prints_what_awk_prints(program: str, printed: str) -> None:
    result = run("awk -f /p /in", p=program)
    assert (result.stdout, result.stderr) == (printed, "")


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("awk -F: '{print $2}' /f", "b;c\n"),
        ("awk -F '[:;]' -v OFS=+ '{print $1, $3}' /f", "a+c\n"),
        ("awk -v 'n=2' '{print $n}' FS=: /f", "b;c\n"),
        ("echo 'x y' | awk '{print $2}' -", "y\n"),
        ("printf 'a b\\nc\\n\\n\\nd e\\n' | awk -v RS= '{print NR, NF}'", "1 3\n2 2\n"),
        ("printf 'a;b;c' | awk -v RS=';' '{print NR \":\" $0}'", "1:a\n2:b\n3:c\n"),
        ("awk 'FNR==1 {print FILENAME}' /in /f", "/in\n/f\n"),
        ("awk '{print $1 > \"/out\"}' /in; cat /out", "a\nb\na\nc\n"),
        ("awk '{print $1 | \"sort -u\"}' /in", "a\nb\nc\n"),
        ("awk 'BEGIN {exit 3}'; echo $?", "3\n"),
        ('X=1 awk \'BEGIN {print ENVIRON["HOME"] != "", ARGV[1], ARGC}\' q', "1 q 2\n"),
    ],
)
def test_options_files_and_commands(command: str, printed: str) -> None:
    assert run(command, f="a:b;c\n").stdout == printed


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("awk '{print'", "awk: syntax error at source line 1 near 'the end'\n"),
        ("awk 'BEGIN {system(\"ls\")}'", "awk: the emulated awk starts no commands: system() is not there\n"),
        ("awk 'BEGIN {\"date\" | getline d}'",
         "awk: the emulated awk starts no commands: `command | getline` is not there\n"),
        ("awk 'BEGIN {print 1/0}'", "awk: division by zero\n"),
        ("awk 'BEGIN {f(1)}'", "awk: function f is not defined\n"),
        ("awk '/(/'  /in", "awk: Unmatched ( or \\( in /(/\n"),
        ("awk '{print $-1}' /in", "awk: there is no field -1\n"),
        ("awk --lint 1", "awk: unknown option --lint\n"),
        ("awk", "awk: no program given\n"),
        ("awk 'BEGIN {x[1]=1; print x}'", "awk: x is an array\n"),
    ],
)  # fmt: skip
def test_what_it_can_t_do_is_said(command: str, said: str) -> None:
    result = run(command)
    assert (result.stderr, result.exit_code) == (said, 2)


def test_a_file_that_is_not_there_is_named() -> None:
    assert "/none" in run("awk 1 /none").stderr


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from([*'{}()[];,+-*/%^!<>|?:~$=a1 \n\\"', " in ", "getline", "print ", "if("]), max_size=14
    )
)
def test_no_text_breaks_the_parser(pieces: list[str]) -> None:
    with contextlib.suppress(AwkError):
        parse("".join(pieces))

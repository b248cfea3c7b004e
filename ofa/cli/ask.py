"""`ofa ask`: one question to a running server, from the shell."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys

from ..client import SILENCE_S, Client, Streamed
from ..errors import BadRequest
from ..rag.cite import without_footer
from .common import Subparsers, add_site_option, load_config, state_of
from .running import add_key_file_option, key_of, server_port, url_here

_EPILOG = """\
What is piped in goes before the question:

  cat job.err | ofa ask hpc "Why did this job fail?"
  ofa ask openfoam - < question.txt

In a shell's `while read` loop add </dev/null, or it reads the loop's lines.
"""


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa ask`."""
    parser = subparsers.add_parser(
        "ask",
        help="ask a running server a question",
        description="Print a mode's answer as it is written, and then its sources.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mode", metavar="MODE", help="such as hpc or ofa-hpc")
    parser.add_argument(
        "question",
        nargs="*",
        metavar="QUESTION",
        help="its words; - or nothing: standard input",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--json", action="store_true", help="print one JSON object at the end"
    )
    shape.add_argument(
        "--no-stream", action="store_true", help="print the answer when it is whole"
    )
    parser.add_argument(
        "--sources",
        action="store_true",
        help="list the sources on standard output (else on standard error)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--port", type=int, metavar="N", help="the server's port here")
    where.add_argument(
        "--url", metavar="URL", help="the server, such as http://node7:40123/v1"
    )
    add_key_file_option(parser)
    add_site_option(parser)
    parser.set_defaults(func=_ask, rest="question")


def _ask(args: argparse.Namespace) -> int:
    config, state = load_config(args), state_of()
    question = _question(args.question)
    url = args.url
    if url is None:
        url = url_here(server_port(config, state, args.port))
    silence_s = max(SILENCE_S, config.engine.load_wait_s + 30)
    messages = [{"role": "user", "content": question}]
    with Client(url, key_of(config, state), silence_s=silence_s) as client:
        if why := client.not_ready():
            print(f"ofa: the server is not ready yet: {why}", file=sys.stderr)
        with client.stream(args.mode, messages) as answer:
            if args.json:
                _print_json(args.mode, answer)
            else:
                text = _print_text(answer, at_once=args.no_stream)
                if args.sources or without_footer(text) == text:  # else it names them
                    _print_sources(answer, wanted=args.sources)
    return 0


def _question(words: list[str]) -> str:
    """Return the question, with what was piped in before it."""
    asked = " ".join(word for word in words if word != "-").strip()
    piped = _piped() if not asked or "-" in words or _is_pipe() else ""
    question = "\n\n".join(filter(None, [piped.strip(), asked]))
    if not question:
        raise BadRequest("no question: give it in quotes, or on standard input")
    return question


def _is_pipe() -> bool:
    """Return whether something was piped or redirected in, and not by a daemon."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or no real file
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _piped() -> str:
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        print("ofa: type the question, then Ctrl-D", file=sys.stderr)
    return sys.stdin.read()


def _print_text(answer: Streamed, *, at_once: bool) -> str:
    """Print the answer, and return it as it came."""
    pieces: list[str] = []
    for text in ["".join(answer)] if at_once else answer:
        shown = _harmless(text) if sys.stdout.isatty() else text
        print(shown, end="", flush=True)
        pieces.append(text)
    whole = "".join(pieces)
    if not whole.endswith("\n"):
        print(flush=True)  # before what stderr says, in one pipe too
    if answer.finish_reason == "length":
        print("ofa: cut at the limit of one answer's tokens", file=sys.stderr)
    return whole


def _print_sources(answer: Streamed, *, wanted: bool) -> None:
    file = sys.stdout if wanted else sys.stderr
    for number, source in enumerate(answer.sources, 1):
        print(f"[{number}] {_harmless(source)}", file=file)
    if wanted and not answer.sources:
        print(f"no sources ({_harmless(answer.rag)})", file=sys.stderr)


def _print_json(mode: str, answer: Streamed) -> None:
    text = "".join(answer)
    whole = {
        "model": mode,
        "answer": text,
        "finish_reason": answer.finish_reason,
        "usage": answer.usage,
        "rag": answer.rag,
        "sources": answer.sources,
    }
    print(json.dumps(whole, ensure_ascii=False))


def _harmless(text: str) -> str:
    """Return *text* without what a terminal would act on; a model may repeat it."""
    return "".join(c for c in text if c in "\n\t" or _is_printing(c))


def _is_printing(character: str) -> bool:
    return not (ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0)

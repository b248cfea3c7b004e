"""
HTML and manual pages' source (roff) made into Markdown, to be taken apart as such.

Knows what carries structure: headings, lists, code. Everything else is dropped, and
nothing is fetched. Not a renderer: what comes out is for search and quoting.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

_HIDDEN = frozenset({"script", "style", "nav", "header", "footer", "svg", "form"})
_BLOCKS = frozenset(
    {"p", "div", "section", "article", "ul", "ol", "dl", "dt", "dd", "table", "tr"}
    | {"blockquote", "br", "hr", "main", "body", "aside", "figure", "figcaption"}
)
# What is around a page, as it is called by the generators of sites that are in use.
_ROLES = frozenset({"navigation", "search", "banner", "contentinfo"})
_CHROME = frozenset(
    {"sphinxsidebar", "related", "breadcrumb", "breadcrumbs", "navbar", "sidebar"}
    | {"wy-nav-side", "wy-nav-top", "wy-breadcrumbs", "rst-footer-buttons", "toc"}
    | {"md-sidebar", "md-header", "md-footer", "md-nav", "md-tabs", "md-skip"}
    | {"side-nav", "nav-path", "main-nav", "footer", "site-footer", "page-footer"}
    | {"mw-navigation", "mw-head", "mw-panel", "mw-editsection", "mw-jump-link"}
    | {"catlinks", "printfooter", "navbox", "skip-link", "site-header", "page-header"}
)
_CLOSED = frozenset({"div", "section", "aside", "ul", "ol", "table", "span", "a"})
_SPACES = re.compile(r"[ \t\n]+")
_PERMALINK = re.compile(r"\s*[\u00b6\uf0c1]$")  # what Sphinx puts behind headings

_ROFF_SOURCE = re.compile(r"^\.(?:TH|Dd|SH|Sh)\b", re.M)
_ESCAPES = (
    (re.compile(r"\\f(?:\[\w*\]|\(..|.)"), ""),  # fonts
    (re.compile(r"\\s[+-]?\d+"), ""),  # sizes
    (re.compile(r"\\(?:\[(?:aq|cq|oq)\]|\((?:aq|cq|oq))"), "'"),
    (re.compile(r"\\(?:\[(?:lq|rq|dq)\]|\((?:lq|rq|dq)|\*[LR]q?)"), '"'),
    (re.compile(r"\\(?:\[bu\]|\(bu)"), "*"),
    (re.compile(r"\\(?:\[(?:em|en|mi|hy)\]|\((?:em|en|mi|hy))"), "-"),
    (re.compile(r"\\[&%:/,^|c]"), ""),  # no width
    (re.compile(r"\\[ ~0]"), " "),
    (re.compile(r"\\(?:\[[^\]\n]*\]|\(..|\*\[[^\]\n]*\]|\*\(..)"), ""),
    (re.compile(r"\\([-'`.])"), r"\1"),
    (re.compile(r"\\e|\\\\"), r"\\"),
)
_WORD = re.compile(r'"((?:[^"]|"")*)"|(\S+)')
_FONTS = frozenset({"B", "I", "SM", "SB"})
_PAIRED_FONTS = frozenset({"BR", "RB", "BI", "IB", "IR", "RI"})


def is_roff(text: str) -> bool:
    """Tell whether *text* is the source of a manual page."""
    return len(_ROFF_SOURCE.findall(text, 0, 20_000)) > 1


def from_html(text: str) -> str:
    """Return a page as Markdown: title, headings, paragraphs, lists and code."""
    reader = _read(text, chrome=True)
    # A menu that is never closed would hide the page behind it.
    return (reader if reader.whole else _read(text, chrome=False)).markdown()


def _read(text: str, *, chrome: bool) -> _Reader:
    reader = _Reader(chrome=chrome)
    reader.feed(text)
    reader.close()
    return reader


def from_roff(text: str) -> str:
    """Return a manual page's source as Markdown; man's macros, mdoc's most common."""
    out: list[str] = []
    code = False
    for line in text.split("\n"):
        if line.startswith(('.\\"', "'\\\"")):
            continue
        if not line.startswith((".", "'")):
            out.append(_unescaped(line))
            continue
        macro, _, rest = line[1:].lstrip().partition(" ")
        if macro in ("nf", "EX", "Bd") and not code:
            out += ["", "```"]
            code = True
        elif macro in ("fi", "EE", "Ed") and code:
            out += ["```", ""]
            code = False
        else:
            out += _macro(macro, rest, code)
    return "\n".join([*out, "```"] if code else out)


def _macro(macro: str, rest: str, code: bool) -> list[str]:
    words = [_unescaped(m[1] or m[2] or "") for m in _WORD.finditer(rest)]
    if macro == "TH" and words:
        return [f"# {words[0].lower()}({words[1] if len(words) > 1 else ''})", ""]
    if macro in ("SH", "Sh", "SS", "Ss"):
        level = "##" if macro.lower() == "sh" else "###"
        return ["", f"{level} {' '.join(words)}", ""]
    if macro in ("PP", "P", "LP", "TP", "IP", "HP", "Pp", "It", "sp"):
        shown = words[:1] if macro == "IP" else words if macro == "It" else []
        return ["" if not code else " ".join(shown), *([] if code else shown)]
    if macro in _FONTS or macro in ("Nm", "Fl", "Ar", "Xr", "Cm", "Pa", "Op", "Dl"):
        return [("-" if macro == "Fl" else "") + " ".join(words)]
    if macro in _PAIRED_FONTS:
        return ["".join(words)]
    return []  # layout, definitions of macros, conditions


def _unescaped(text: str) -> str:
    for pattern, meant in _ESCAPES:
        text = pattern.sub(meant, text)
    return text


class _Span:
    """Tells how far an element goes, by counting those of its name within it."""

    def __init__(self) -> None:
        self._tag = ""
        self._depth = 0

    @property
    def inside(self) -> bool:
        """Whether the element has begun and not ended."""
        return self._depth > 0

    def open(self, tag: str) -> None:
        """Begin with an element."""
        self._tag, self._depth = tag, 1

    def start(self, tag: str) -> bool:
        """Note an element's start; tell whether this one is around it."""
        if self._depth and tag == self._tag:
            self._depth += 1
        return self._depth > 0

    def end(self, tag: str) -> bool:
        """Note an element's end; tell whether it was this one's."""
        if not self._depth or tag != self._tag:
            return False
        self._depth -= 1
        return not self._depth


def _is_chrome(attrs: list[tuple[str, str | None]]) -> bool:
    told = {key: (value or "").lower() for key, value in attrs}
    names = {*told.get("class", "").split(), told.get("id", "")}
    return told.get("role", "") in _ROLES or not names.isdisjoint(_CHROME)


def _is_main(tag: str, attrs: list[tuple[str, str | None]]) -> bool:
    return tag == "main" or ("role", "main") in attrs


class _Reader(HTMLParser):
    """
    Collects lines while the parser walks the page.

    *chrome* leaves out what is around the page, and all but its main part if it has
    one; `whole` is false where that ended in the middle.
    """

    def __init__(self, *, chrome: bool) -> None:
        super().__init__(convert_charrefs=True)
        self._chrome = chrome
        self._left_out = _Span()
        self._main = _Span()
        self._main_at = (0, 0)
        self._out: list[str] = []
        self._hidden = 0
        self._code = 0
        self._title: list[str] = []
        self._in_title = False
        self._in_heading = False

    @property
    def whole(self) -> bool:
        """Whether all that was left out has ended."""
        return not self._left_out.inside

    def markdown(self) -> str:
        """Return what was collected."""
        start, end = self._main_at
        main = "".join(self._out[start:end])
        body = main if any(map(str.isalnum, main)) else "".join(self._out)
        lines = [_PERMALINK.sub("", line.rstrip()) for line in body.split("\n")]
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
        title = _SPACES.sub(" ", "".join(self._title)).strip()
        has_title = text.startswith("# ") or "\n# " in text
        return text if has_title or not title else f"# {title}\n\n{text}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open what *tag* means."""
        if self._left_out.start(tag):
            return
        if self._chrome and tag in _CLOSED and _is_chrome(attrs):
            self._left_out.open(tag)
            return
        if not self._main.start(tag) and not self._main_at[1] and _is_main(tag, attrs):
            self._main.open(tag)
            self._main_at = (len(self._out), len(self._out))
        self._open(tag)

    def _open(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag == "title":
            self._in_title = True
        elif tag == "pre":
            self._code += 1
            self._out.append("\n\n```\n")
        elif re.fullmatch("h[1-6]", tag):
            self._in_heading = True
            self._out.append(f"\n\n{'#' * int(tag[1])} ")
        elif tag == "li":
            self._out.append("\n- ")
        elif tag in ("td", "th"):
            self._out.append(" | ")
        elif tag == "code" and not self._code:
            self._out.append("`")
        elif tag in _BLOCKS and not self._code:
            self._out.append("\n" if tag in ("br", "tr") else "\n\n")
        elif tag == "br":
            self._out.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """Close what *tag* opened."""
        if self._left_out.inside:
            self._left_out.end(tag)
            return
        if self._main.end(tag):
            self._main_at = (self._main_at[0], len(self._out))
        self._close(tag)

    def _close(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag == "title":
            self._in_title = False
        elif tag == "pre" and self._code:
            self._code -= 1
            self._out.append("\n```\n\n")
        elif re.fullmatch("h[1-6]", tag):
            self._in_heading = False
            self._out.append("\n\n")
        elif tag == "code" and not self._code:
            self._out.append("`")
        elif tag in _BLOCKS and not self._code and tag not in ("br", "tr"):
            self._out.append("\n\n")

    def handle_data(self, data: str) -> None:
        """Take text, unless it is of something hidden."""
        if self._in_title:
            self._title.append(data)
        elif self._hidden or self._left_out.inside:
            return
        elif self._code:
            self._out.append(data)
        elif shown := _SPACES.sub(" ", data):
            # A blank at the start of a line would be an indentation.
            fresh = not self._out or self._out[-1].endswith("\n")
            self._out.append(shown.lstrip() if fresh else shown)

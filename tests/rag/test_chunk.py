"""Chunks: within the window, along the structure, losing nothing, always the same."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.rag.chunk import chunk
from ofa.rag.chunk_foam import strip
from ofa.rag.document import Document

WINDOW = 60


def words(text):
    """Count words and signs, and two marks: a tokenizer that can be foreseen."""
    return 2 + len(re.findall(r"\w+|[^\w\s]", text))


def cut(path, text, window=WINDOW, collection="hpc"):
    """Return the chunks of a document by the foreseeable tokenizer."""
    return chunk(Document(collection, path, text), count=words, window=window)


def sections(chunks):
    """Return each chunk's section."""
    return [piece.section for piece in chunks]


MARKDOWN = """---
title: ignored by most
---
# Job arrays

An array runs one script many times.

## Submitting

Give the range to sbatch:

```bash
# this is no heading
sbatch --array=1-10 job.sh
```

## Limits ##

{filler}

### Per user

At most 1000 tasks.
""".format(filler="A limit is set by the site. " * 12)


def test_markdown_follows_its_headings():
    """Chunks carry the chain of headings, without the title, and keep code whole."""
    chunks = cut("arrays.md", MARKDOWN)

    assert {piece.title for piece in chunks} == {"ignored by most"}
    code = next(piece for piece in chunks if "sbatch --array" in piece.text)
    assert code.section.endswith("Submitting")
    assert "Give the range to sbatch:" in code.text
    assert code.text.count("```") == 2
    assert any(s.endswith("Limits > Per user") for s in sections(chunks))


def test_a_first_heading_is_the_title():
    """The title comes from the first heading, and is not repeated in sections."""
    chunks = cut("a.md", "# Title\n\ntext\n\n## Part\n\n" + "more words " * 30)

    assert {piece.title for piece in chunks} == {"Title"}
    assert set(sections(chunks)) == {"", "Part"}


def test_underlined_headings_count_in_markdown():
    """Setext headings are headings; a rule after a blank line is none."""
    text = "Title\n=====\n\ntext\n\n---\n\nPart\n----\n\n" + "words " * 60

    assert set(sections(cut("a.md", text))) == {"", "Part"}


def test_a_long_code_block_is_fenced_in_each_part():
    """A block larger than a chunk is cut between lines, each part a block again."""
    lines = "\n".join(f"command --option={n} file{n}" for n in range(40))
    chunks = cut("a.md", f"# T\n\n```bash\n{lines}\n```\n")

    code = [piece.text for piece in chunks if "command" in piece.text]

    assert len(code) > 3
    for text in code:
        assert text.count("```") == 2
        assert text.rstrip().endswith("```")
    together = "\n".join(code)
    for n in range(40):
        assert f"command --option={n} file{n}\n" in together


def test_an_unclosed_fence_ends_with_the_text():
    """Nothing is lost behind a fence that is never closed."""
    assert "tail" in cut("a.md", "# T\n\n```\ncode\n\n# no heading\ntail\n")[-1].text


RST = """.. _label:

*******
Modules
*******

Use ``module``.

Searching
=========

.. code-block:: bash

   module spider hdf5

Deep
----

{filler}
""".format(filler="Words about it. " * 20)


def test_restructured_text_follows_its_adornments():
    """Levels come in the order of their first use; a block stays with its lead-in."""
    chunks = cut("modules.rst", RST)

    assert {piece.title for piece in chunks} == {"Modules"}
    assert any(s == "Searching > Deep" for s in sections(chunks))
    spider = next(piece for piece in chunks if "module spider" in piece.text)
    assert ".. code-block:: bash\n\n   module spider hdf5" in spider.text
    assert not any("_label" in piece.text for piece in chunks)


MANUAL = """SBATCH(1)                     Slurm                     SBATCH(1)

NAME
       sbatch - submit a batch script

OPTIONS
       -n, --ntasks=<number>
              Number of tasks.

   Filename pattern
       %j is the job's number.

SEE ALSO
       srun(1)
"""


def test_a_manual_page_follows_its_capitals():
    """Rendered manual pages are cut at their headings and sub-headings."""
    chunks = cut("man/sbatch.1.txt", MANUAL, window=40)

    found = sections(chunks)

    assert "Options > Filename pattern" in found
    assert any("--ntasks" in c.text and "Options" in c.section for c in chunks)


ROFF = r""".TH SBATCH 1 "2024" "Slurm"
.SH NAME
sbatch \- submit a batch script
.SH OPTIONS
.TP
\fB\-n\fR, \fB\-\-ntasks\fR=<\fInumber\fR>
Number of tasks. See \fBsrun\fR(1).
.\" a remark
.nf
#SBATCH \-\-ntasks=4
.fi
"""


def test_roff_source_becomes_text():
    """A manual page's source loses its fonts and escapes, and keeps its options."""
    text = "\n".join(c.text for c in cut("man1/sbatch.1", ROFF))

    assert "-n, --ntasks=<number>" in text
    assert "#SBATCH --ntasks=4" in text
    assert "\\" not in text
    assert "a remark" not in text
    assert cut("man1/sbatch.1", ROFF)[0].title == "sbatch(1)"


HTML = """<html><head><title>Slurm - sbatch</title><style>p {}</style></head>
<body><nav>Menu</nav><h1>sbatch&#182;</h1><p>Submits a <code>batch</code>
script.</p><h2>Options</h2><dl><dt>--ntasks</dt><dd>Number &lt; 10</dd></dl>
<pre>#SBATCH   -n 4
srun x</pre><ul><li>one</li><li>two</li></ul><script>alert(1)</script></body>"""


def test_html_becomes_text():
    """Headings, code and lists stay; menus, styles and scripts go."""
    chunks = cut("sbatch.html", HTML, window=200)
    text = "\n".join(c.text for c in chunks)

    assert chunks[0].title == "sbatch"
    assert "Submits a `batch` script." in text
    assert "#SBATCH   -n 4\nsrun x" in text
    assert "Number < 10" in text
    assert "- one\n- two" in text
    for gone in ("Menu", "alert", "p {}", "<"):
        assert gone not in text.replace("Number < 10", "")


PYTHON = '''# Copyright 2026 Somebody
# SPDX-License-Identifier: MIT
"""Tests of streams.

Overview
--------

Some prose.
"""

import reframe as rfm

# About the test.
@rfm.simple_test
class StreamTest(rfm.RunOnlyRegressionTest):
    """Runs STREAM."""

    valid_systems = ["*"]

    @run_before("run")
    def set_threads(self):
        """Docstring with def inside: def no(self): pass."""
        self.env_vars = {"OMP_NUM_THREADS": "4", "OMP_PLACES": "cores"}

    async def later(self):
        return {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}


def helper(x):
    return x + 1
'''


def test_python_is_cut_by_definition():
    """Methods stand under their class, decorators with what they decorate."""
    chunks = cut("stream.py", PYTHON)

    assert chunks[0].title == "Tests of streams"
    threads = next(c for c in chunks if "def set_threads" in c.text)
    assert threads.section == "StreamTest > set_threads"
    assert '@run_before("run")' in threads.text
    assert any(c.section == "StreamTest > later" for c in chunks)
    assert any("@rfm.simple_test\nclass StreamTest" in c.text for c in chunks)
    assert not any("Copyright" in c.text for c in chunks)
    assert not any(c.section.endswith("no") for c in chunks)


@pytest.mark.parametrize(
    "text", ["def broken(:\n  'x\n\ny = 1\n", "print 'python 2'\n\nx"]
)
def test_broken_python_is_still_text(text):
    """Code that does not parse is cut at blank lines; nothing is lost."""
    together = "\n".join(c.text for c in cut("old.py", text))

    assert [line for line in text.split("\n") if line] == [
        line for line in together.split("\n") if line
    ]


def test_settings_are_cut_by_table_and_key():
    """A TOML table and a YAML key are sections; remarks stay with what follows."""
    filler = "\n".join(f"key{n} = {n}" for n in range(20))
    toml = cut("x.toml", f"# top\nname = 1\n\n# of a\n[a.b]\n{filler}\n[c]\nz = 1\n")
    lines = "\n".join(f"  item{n}: {n}" for n in range(20))
    yaml = cut("x.yaml", f"first:\n{lines}\n# about second\nsecond:\n{lines}\n")

    assert "a > b" in sections(toml)
    assert any("# of a\n[a.b]" in c.text for c in toml)
    assert {"first", "second"} <= set(sections(yaml))
    assert any("# about second\nsecond:" in c.text for c in yaml)


FIELD = """/*-----------------------------*- C++ -*-------------------------------*\\
| =========                 |                                                 |
| \\\\      /  F ield         | OpenFOAM: The Open Source CFD Toolbox           |
\\*---------------------------------------------------------------------------*/
FoamFile
{
    version     2.0;
    class       volVectorField;
    object      U;
}
// * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * //

#include "include/initialConditions"

dimensions      [0 1 -1 0 0 0 0]; // velocity

internalField   uniform (0 0 0);

boundaryField
{
    inlet
    {
        type            flowRateInletVelocity;
        volumetricFlowRate { type constant; value 0.1; }
    }
    outlet { type zeroGradient; }
    // the moving wall; a } in a remark
    wall
    {
        type            codedFixedValue;
        code #{ if (x) { y = "}"; } #};
    }
}

// ************************************************************************* //
"""
CASE = "incompressible/simpleFoam/pitzDaily/0/U"


def test_a_dictionary_loses_what_is_in_every_file():
    """Banner, header and ruling lines go; remarks and entries stay."""
    body = strip(FIELD)

    assert body.startswith('#include "include/initialConditions"')
    for gone in ("F ield", "FoamFile", "volVectorField", "* *"):
        assert gone not in body
    assert "// velocity" in body


def balanced(text):
    """Tell whether all braces outside of remarks, strings and code match."""
    text = re.sub(r'//[^\n]*|#\{.*?#\}|"[^"\n]*"', "", text, flags=re.S)
    depth = 0
    for sign in text:
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(sign, 0)
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize("window", [50, 60, 80, 120, 400])
def test_a_dictionary_is_never_cut_in_a_brace(window):
    """At any size each chunk's braces match, and no entry is lost."""
    chunks = cut(CASE, FIELD, window=window, collection="openfoam")

    for piece in chunks:
        assert balanced(piece.text), piece.text
        assert words(piece.index) <= window
    together = "\n".join(piece.text for piece in chunks)
    for kept in ("flowRateInletVelocity", "zeroGradient", "codedFixedValue", "uniform"):
        assert kept in together


def test_a_dictionary_is_headed_by_its_case():
    """The case and the words in its name are searched with every chunk."""
    chunks = cut(CASE, FIELD, window=70, collection="openfoam")

    assert all("pitzDaily/0/U" in piece.head for piece in chunks)
    assert all("pitz daily" in piece.head for piece in chunks)
    inlet = next(piece for piece in chunks if "flowRate" in piece.text)
    assert inlet.section == "boundaryField"


def test_a_long_list_is_shown_by_its_beginning():
    """A thousand points are data: the first lines and a count stand for them."""
    points = "\n".join(f"    ({n} 0 0)" for n in range(1000))
    text = f"FoamFile\n{{\n}}\n\nvertices\n(\n{points}\n);\n\nscale 0.1;\n"
    together = "\n".join(c.text for c in cut("system/blockMeshDict", text))

    assert "(7 0 0)" in together
    assert "992 more lines of vertices left out" in together
    assert "scale 0.1;" in together


@pytest.mark.parametrize(
    "text", ["a { b", "a } b", "a ( ;\n\nb 1;", "/* never closed\n\na {", '"open\n{;']
)
def test_a_broken_dictionary_is_still_text(text):
    """Braces that do not match leave a text cut at blank lines."""
    chunks = cut("case/system/controlDict", f"FoamFile\n{{\n}}\n{text}")

    assert "".join("".join(c.text for c in chunks).split()) == "".join(text.split())


LEFT_OUT = (".", "<!", "FoamFile")  # roff, remarks and headers are meant to go
NAMES = ["a.md", "a.rst", "a.py", "a.txt", "a.toml", "a.yaml", "a.html", "a.sh", "0/U"]
SHAPES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "# head",
                "## sub",
                "====",
                "----",
                "```",
                "::",
                "",
                "  indented",
                "{",
                "}",
            ]
            + ["def f():", "class A:", "[table]", "key: value", "FoamFile\n{\n}", ";"]
            + [
                "<h1>x</h1>",
                "<pre>",
                ".SH NAME",
                '"""',
                "NAME",
                "#include x",
                "(",
                ");",
            ]
        ),
        st.text(max_size=30),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=300)
@given(SHAPES, st.sampled_from(NAMES), st.integers(24, 80))
def test_any_text_gives_chunks_within_the_window(lines, name, window):
    """No text breaks a chunker; all chunks fit, have text, and come again the same."""
    text = "\n".join(lines)

    chunks = cut(name, text, window=window)

    for piece in chunks:
        assert words(piece.index) <= window
        assert piece.text.strip()
    assert chunks == cut(name, text, window=window)


@settings(deadline=None, max_examples=150)
@given(SHAPES, st.sampled_from(["a.md", "a.txt", "a.sh", "a.py", "a.yaml"]))
def test_no_word_is_lost(lines, name):
    """Every word of prose, code and settings stands in some chunk, in order."""
    text = "\n".join(line for line in lines if not line.startswith(LEFT_OUT))

    together = " ".join(c.text for c in cut(name, text, window=5000))

    assert "".join(re.findall(r"[A-Za-z]", together)) == "".join(
        re.findall(r"[A-Za-z]", text)
    )


def test_a_line_longer_than_the_window_is_cut_at_words():
    """One endless line is cut where blanks are; a word without any, anywhere."""
    chunks = cut("a.txt", "word " * 500 + "x" * 3000)

    assert len(chunks) > 10
    assert all(words(c.index) <= WINDOW for c in chunks)
    assert "".join(c.text for c in chunks).count("word") == 500


def test_a_deep_path_leaves_room_for_text():
    """The head is cut from the left; the file's own name stays."""
    path = "/".join(f"folder{n}" for n in range(40)) + "/job.md"

    chunks = cut(path, "# Title\n\n" + "words " * 100)

    assert all("job.md" in c.head for c in chunks)
    assert all(words(c.head) <= WINDOW * 0.5 for c in chunks)


def test_the_real_window_is_kept(embedder):
    """MiniLM's own tokenizer agrees: 256 tokens at most, on text dense with signs."""
    text = FIELD + "\n".join(
        f"k{n} {{ a{n} (1e-{n} 0.{n} -{n}); }}" for n in range(300)
    )

    chunks = chunk(
        Document("openfoam", CASE, text),
        count=embedder.count_tokens,
        window=embedder.window,
    )

    sizes = [embedder.count_tokens(piece.index) for piece in chunks]
    assert len(chunks) > 5
    assert max(sizes) <= 256
    assert sorted(sizes)[len(sizes) // 2] > 150

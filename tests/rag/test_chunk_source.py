"""Programs, batch scripts and settings taken apart: by what they define."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.rag.chunk import chunk
from ofa.rag.document import Document

MODULE = """! Copyright 2020 somebody
! Distributed under the MIT license

module flow_solver
  implicit none
  type, public :: grid_t
     integer :: n
  end type grid_t
contains
  ! Solves the pressure equation.
  subroutine solve(p, n, &
                   tol)
    real, intent(inout) :: p(:)
    if (n > 0) then
       p = 0
    end if
{body}
  end subroutine solve

  pure real(kind=8) function norm2d(x) result(r)
    real, intent(in) :: x(:)
    r = sqrt(sum(x**2))
  end function
end module flow_solver
"""
HEADER = """/* -----------------------------------------
License
    This file is part of OpenFOAM.

Description
    Steady-state solver for incompressible flow.
------------------------------------------- */
#ifndef A_H
#define A_H
#include <vector>
namespace amrex {{
// Adds two.
AMREX_GPU_DEVICE AMREX_FORCE_INLINE
int add (int a, int b) noexcept
{{
    // }}
    char x = '}}';
    const char* s = "}}}}" R"(}})";
    int c = a + b;
    c += 0;
    return c;
}}
template <class T>
T* clone (const T& t)
{{
{body}
}}
}} // namespace amrex
#endif
"""


def words(text):
    """Count words and the model's two marks."""
    return len(text.split()) + 2


def chunks(path, text, window=120):
    """Return the chunks of a document with that path."""
    return chunk(Document("code", path, text), count=words, window=window)


def sections(found):
    """Return the sections, each once, in order."""
    return list(dict.fromkeys(piece.section for piece in found))


def test_fortran_is_cut_by_procedure():
    """A module is the title; types and procedures are sections, remarks with them."""
    found = chunks("src/flow.f90", MODULE.format(body=""))

    assert {piece.title for piece in found} == {"flow_solver"}
    assert sections(found) == ["", "grid_t", "solve", "norm2d"]
    by = {piece.section: piece.text for piece in found}
    assert by["solve"].lstrip().startswith("! Solves the pressure equation.")
    assert by["solve"].rstrip().endswith("end subroutine solve")
    assert "license" not in "".join(by.values())


def test_each_part_of_a_long_procedure_has_its_signature():
    """Continued lines of the signature stand above every part."""
    body = "\n\n".join(f"    p({n}) = p({n + 1}) + dt" for n in range(200))

    found = [
        piece
        for piece in chunks("src/flow.f90", MODULE.format(body=body))
        if piece.section == "solve"
    ]

    assert len(found) > 5
    for piece in found:
        assert "subroutine solve(p, n, &\n                   tol)" in piece.text
    lines = "\n".join(piece.text for piece in found).split("\n")
    assert sum("+ dt" in line for line in lines) == 200  # none lost, none twice


@pytest.mark.parametrize("name", ["a.f", "a.FOR", "a.F90", "a.f03"])
def test_fixed_form_with_bare_ends_is_fortran(name):
    """Old programs end with END alone, and comment with C in the first column."""
    text = (
        "C     Makes it hot.\n      SUBROUTINE HEAT(T)\n      REAL T\n      T = 1.0\n"
        "      IF (T .GT. 0) THEN\n      T = 2.0\n      ENDIF\n      END\n"
        "      REAL FUNCTION COOL(T)\n      COOL = T\n      END\n"
    )

    found = chunks(name, text)

    assert sections(found) == ["HEAT", "COOL"]
    assert found[0].text.startswith("C     Makes it hot.")


def test_fortran_that_does_not_end_is_cut_at_blank_lines():
    """A broken file loses nothing."""
    text = "subroutine a(x)\n  x = 1\n\n  x = 2\n"

    assert "x = 2" in chunks("a.f90", text)[-1].text


@pytest.mark.parametrize("name", ["src/a.H", "src/a.cu", "src/a.cpp", "src/a.hpp"])
def test_cpp_is_cut_by_definition(name):
    """Namespaces are sections; a remark goes with its function, a licence with none."""
    body = "\n".join(f"    t.call({n});" for n in range(8))

    found = chunks(name, HEADER.format(body=body), window=60)

    assert sections(found) == ["", "amrex > add", "amrex > clone"]
    add = next(piece for piece in found if piece.section == "amrex > add")
    assert add.text.startswith("// Adds two.")
    assert add.text.endswith("}")
    whole = "\n".join(piece.text for piece in found)
    assert "This file is part of" not in whole
    assert "Steady-state solver" in whole


def test_each_part_of_a_long_function_has_its_signature():
    """A part from the middle still says which function it is of."""
    body = "\n".join(f"    total += call({n});" for n in range(300))

    found = [
        piece
        for piece in chunks("a.cpp", HEADER.format(body=body))
        if piece.section == "amrex > clone"
    ]

    assert len(found) > 5
    assert all("T* clone (const T& t)" in piece.text for piece in found)
    assert sum(piece.text.count("total +=") for piece in found) == 300


def test_cpp_with_odd_braces_is_cut_at_blank_lines():
    """Braces that an #if opens twice are no structure; nothing is lost."""
    text = "#if A\nvoid f() {\n#else\nvoid f(int) {\n#endif\n  run();\n}\n\nint last;\n"

    assert "int last;" in chunks("a.cpp", text)[-1].text


@given(st.text(alphabet="{}();\"/*\n#xR \\'", max_size=200))
@settings(max_examples=150, deadline=None)
def test_no_source_is_too_odd(text):
    """Whatever a file holds, its chunks come, within the window."""
    for name in ("a.cpp", "a.f90", "a.json"):
        for piece in chunks(name, text, window=40):
            assert words(piece.index) <= 40


def test_a_batch_script_is_called_after_its_job():
    """Directives stay together; the title names scheduler and job."""
    text = (
        "#!/bin/bash\n#SBATCH --job-name=cavity\n#SBATCH --nodes=2\n\n"
        "#SBATCH --time=01:00:00\n\nmodule load openfoam\n\nsrun simpleFoam -parallel\n"
    )

    found = chunks("jobs/run.slurm", text)

    assert found[0].title == "Slurm batch script cavity"
    assert "--nodes=2" in found[0].text
    assert "--time=01:00:00" in found[0].text


def test_slurm_conf_has_sections_and_no_passwords():
    """Remarks are headings, a partition's line is found by name, secrets are not."""
    text = (
        "#\n# SCHEDULING\n#\n\nSchedulerType=sched/backfill\n\n# COMPUTE NODES\n\n"
        "PartitionName=debug Nodes=n[1-4] MaxTime=30\n\nStoragePass=hunter2\n"
    )

    found = chunks("etc/slurm.conf", text, window=30)
    told = "\n".join(piece.index for piece in found)

    assert "hunter2" not in told
    assert "StoragePass=(left out)" in told
    assert "SCHEDULING" in sections(found)[0]
    assert any("debug" in piece.section for piece in found)


def test_json_is_cut_by_key_and_long_lists_are_cut():
    """A key's chain is its section; numbers without end are not indexed."""
    text = json.dumps(
        {
            "partitions": {
                f"p{n}": {"walltime": f"{n}:00", "nodes": "many words here " * 8}
                for n in range(9)
            },
            "grid": list(range(1000)),
        }
    )

    found = chunks("site.json", text, window=60)
    told = "\n".join(piece.text for piece in found)

    assert any(piece.section.startswith("partitions") for piece in found)
    assert '"walltime": "8:00"' in told
    assert "(995 more left out)" in told
    assert "\n 700" not in told


def test_vasp_inputs_are_told_by_name():
    """INCAR is whole; a structure is what stands above its atoms."""
    atoms = "\n".join(f"0.{n} 0.1 0.2" for n in range(100))

    incar = chunks("relax/INCAR", "ENCUT = 520  ! eV\nISMEAR = 0\n")
    poscar = chunks(
        "relax/POSCAR.vasp", f"Si\n1.0\n1 0 0\n0 1 0\n0 0 1\nSi\n2\n{atoms}\n"
    )

    assert incar[0].title == "VASP INCAR"
    assert "ISMEAR = 0" in incar[0].text
    assert "(98 more lines of atoms left out)" in poscar[-1].text
    assert "0.50 0.1" not in poscar[-1].text


@pytest.mark.parametrize("name", ["poscar-file.md", "KPOINTS.rst", "incar_tags.html"])
def test_pages_about_vasp_inputs_stay_whole(name):
    """A page that is named after an input is a page: none of its text goes."""
    text = "\n\n".join(f"Paragraph {n} tells of atoms." for n in range(30))

    found = " ".join(piece.text for piece in chunks(f"notes/{name}", text))

    assert all(f"Paragraph {n} tells" in found for n in range(30))


def test_pages_are_sections():
    """A PDF's text names its page, and its own title."""
    document = Document(
        "hpc", "guide.pdf", "The Guide\fFirst.\fSecond.\n", form=".pages"
    )

    found = chunk(document, count=words, window=60)

    assert [(p.title, p.section, p.text) for p in found] == [
        ("The Guide", "p. 1", "First."),
        ("The Guide", "p. 2", "Second."),
    ]

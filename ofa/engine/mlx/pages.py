"""
Huge pages for the weights, all of which are read for each token.

Most Linux systems give them to who asks (``madvise``), and glibc asks if it was told to
before the process started. With pages of 4 KiB a token of Gemma 3 270M in float32 took
some 10 % longer on a virtual machine (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Mapping

_TUNABLES = "GLIBC_TUNABLES"
_HUGE = "glibc.malloc.hugetlb"  # since glibc 2.35; 1: by madvise, what is there


def with_huge_pages(env: Mapping[str, str]) -> dict[str, str]:
    """
    Return *env* for a process that is to load a model.

    Whoever has chosen already is left with the choice. Other C libraries and systems
    take no notice.
    """
    told = env.get(_TUNABLES, "")
    if _HUGE in told:
        return dict(env)
    return {**env, _TUNABLES: ":".join(filter(None, (told, f"{_HUGE}=1")))}

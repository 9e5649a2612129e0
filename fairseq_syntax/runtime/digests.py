"""Digests, one for each purpose; docs/formats.md ("Where a file comes from") lists the records that hold them.

- Content, where another file must not pass for it: SHA-256, 64 digits (:func:`file_sha256`, :func:`sha256`).
- What something was made from: a :func:`fingerprint` of values, 32 digits.
- Damage: XXH3, 16 digits (:func:`file_checksum`, :func:`checksum`), at several GB per second; not against forgery.

The label inventory and the lengths of a token dataset are identified by 16 digits of SHA-256 (:func:`short_sha256`),
which stores and checkpoints hold and compare.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

import xxhash

from fairseq_syntax.runtime.files import StrPath, as_data_error

Bytes = bytes | memoryview


def file_sha256(path: StrPath) -> str:
    """The SHA-256 of a file in hexadecimal."""
    return file_digest(path, hashlib.sha256())


def sha256(*blocks: Bytes) -> str:
    """The SHA-256 of the concatenation of the blocks in hexadecimal."""
    return sha256_of(blocks)


def sha256_of(blocks: Iterable[Bytes]) -> str:
    """:func:`sha256`, where the blocks are read one at a time."""
    return _of_blocks(hashlib.sha256(), blocks)


def short_sha256(block: Bytes) -> str:
    """The first 16 digits of :func:`sha256`."""
    return sha256(block)[:16]


def fingerprint(*values: object) -> str:
    """The fingerprint of JSON values: 32 hexadecimal digits of their SHA-256. Paths are represented by their names."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=os.fspath)
    return sha256(text.encode("utf-8", "surrogateescape"))[:32]


def file_checksum(path: StrPath) -> str:
    """The XXH3 checksum (64 bits) of a file in hexadecimal."""
    return file_digest(path, xxhash.xxh3_64())


def checksum(*blocks: Bytes) -> str:
    """The XXH3 checksum (64 bits) of the concatenation of the blocks in hexadecimal."""
    return _of_blocks(xxhash.xxh3_64(), blocks)


def file_digest(path: StrPath, digest: Any) -> str:
    """The hexadecimal digest of a file, by a hash object with ``update`` and ``hexdigest``."""
    with as_data_error(path, "read"), open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return str(digest.hexdigest())


def _of_blocks(digest: Any, blocks: Iterable[Bytes]) -> str:
    for block in blocks:
        digest.update(block)
    return str(digest.hexdigest())

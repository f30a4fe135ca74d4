"""Names of workspaces (sandbox-manager 2): the folder, the record and the queue of one workspace."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_HASH_DIGITS: Final = 16
_MAX_FOLDER_BYTES: Final = 255
"""What Linux file systems take as one name."""


def tenant_problem(tenant_id: str) -> str | None:
    """Why workspaces of this tenant can't have folders, or None when they can."""
    if not tenant_id:
        return "The tenant id is empty."
    if "/" in tenant_id or "\0" in tenant_id:
        return "The tenant id holds a character that no folder name may have."
    try:
        longest = len(resource_key(tenant_id, "x").encode())
    except UnicodeEncodeError:
        return "The tenant id holds half of a surrogate pair."
    if longest > _MAX_FOLDER_BYTES:
        return "The tenant id is too long for a folder name."
    return None


def key_prefix(tenant_id: str) -> str:
    """What every workspace key of a tenant begins with."""
    return f"nylorun-{tenant_id}-"


def session_key(tenant_id: str, owner_id: str) -> str:
    """The key of a session's own workspace."""
    return key_prefix(tenant_id) + _hash(owner_id)


def resource_key(tenant_id: str, sandbox_id: str) -> str:
    """The key of a sandbox that sessions share."""
    return f"{key_prefix(tenant_id)}sbx-{_hash(sandbox_id)}"


def workspace_key(tenant_id: str, owner_id: str, sandbox_id: str | None) -> str:
    """The shared sandbox's key when there is one, else the session's."""
    return session_key(tenant_id, owner_id) if sandbox_id is None else resource_key(tenant_id, sandbox_id)


def is_workspace_key(tenant_id: str, key: str) -> bool:
    """Whether `key` has exactly the form of this tenant's keys (sandbox-manager 11.2, safety)."""
    form = re.escape(key_prefix(tenant_id)) + rf"(?:sbx-)?[0-9a-f]{{{_HASH_DIGITS}}}"
    return re.fullmatch(form, key) is not None


def _hash(identity: str) -> str:
    # A lone half of a surrogate pair becomes U+FFFD, as when JavaScript writes UTF-8.
    data = identity.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
    return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]

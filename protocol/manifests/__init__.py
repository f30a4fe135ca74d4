"""The rules of agent manifests (agent-engine 2) and of workflow manifests version 2 (flow-engine 2.2).

`protocol.manifest` and `protocol.workflow` are the doors. Inside: `place` says where in a document we are and
holds the one error, `shape` the small checks, `sandbox`, `agent` and `workflow` one kind of document each,
`walk` goes from a document to those it embeds without recursion.
"""

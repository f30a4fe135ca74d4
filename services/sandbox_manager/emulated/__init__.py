"""The emulated driver: a shell written in Python, for systems that refuse namespaces (sandbox-manager 16.1).

Commands run in child processes that can be killed; nothing of the host's programs is started.
"""

"""The driver `local`: commands as plain children, in a pod that is the boundary itself (sandbox-manager 12)."""

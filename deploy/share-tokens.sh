#!/bin/sh
# Makes the stack's tokens once and gives each process a folder with those it needs, and no others:
#   /tokens/TOKEN              all of them, seen by this program alone
#   /readers/PROCESS/TOKEN     copies (0400), one volume per process
# What is there stays as it is. `share-tokens rotate` makes new ones.
set -eu
umask 077

case "${1-}" in
  "") ;;
  rotate) rm -f /tokens/* ;;
  *) echo "usage: share-tokens [rotate]" >&2; exit 1 ;;
esac

whippletree tokens /tokens

give() {
  reader=/readers/$1
  shift
  for name; do
    if ! cmp -s "/tokens/$name" "$reader/$name"; then
      install -m 0400 "/tokens/$name" "$reader/.$name.new"
      mv -f "$reader/.$name.new" "$reader/$name"
    fi
  done
}

give core core harness
give harness harness model-executor mcp-pool sandbox-manager
give model-executor model-executor
give mcp-pool mcp-pool
give sandbox-manager sandbox-manager
give tool-gate core

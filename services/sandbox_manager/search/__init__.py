"""`grep` run as a program: files in the byte order of their paths, with ripgrep's help where that is safe."""

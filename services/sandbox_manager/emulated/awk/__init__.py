"""`awk` as POSIX has it: the library's own gives wrong results without an error for every second program."""

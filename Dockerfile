# One image for all processes: the command chooses (`--service harness`, `--service mcp-pool`, ...).
# BASE is any Debian-based image with Python 3.11 or newer.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY protos protos
COPY protocol protocol
COPY cli cli
COPY gateway gateway
COPY services services
RUN python3 -m pip wheel --no-cache-dir --wheel-dir /wheels .

FROM ${BASE}
RUN if ! command -v tini >/dev/null; then \
      apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=build /wheels /wheels
RUN python3 -m venv /app \
    && /app/bin/pip install --no-cache-dir --no-index --find-links /wheels whippletree \
    && rm -rf /wheels \
    && ln -s /app/bin/whippletree /usr/local/bin/whippletree \
    && useradd --uid 1000 --user-group --no-create-home --home-dir /harness --shell /usr/sbin/nologin whippletree \
    && install -d -o 1000 -g 1000 /harness /state /tokens
COPY deploy/model-script.json /etc/whippletree/model-script.json
ENV PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /harness
EXPOSE 4000 4200 4410 4420 4430
ENTRYPOINT ["tini", "-g", "--", "whippletree"]
CMD ["--service", "harness"]

# An engine's image with p2pcache beside it, for weights that are streamed. From the project's root:
#   docker build -f deploy/docker/engine.Dockerfile -t vllm-p2pcache:0.33.0 .
#   docker build -f deploy/docker/engine.Dockerfile --build-arg BASE=docker.io/lmsysorg/sglang:v0.5.23 \
#       -t sglang-p2pcache:0.5.23 .
# With --build-arg P2PCACHE_COMMIT=$(git rev-parse HEAD) `p2pcache version` says the commit: .git stays out of the build.
ARG BASE=docker.io/vllm/vllm-openai:v0.33.0

FROM ${BASE}
WORKDIR /opt/p2pcache-src
ARG P2PCACHE_COMMIT=
COPY pyproject.toml setup.py README.md LICENSE ./
COPY p2pcache p2pcache
COPY agent agent
COPY tracker tracker
COPY cli cli
# Into the engine's own environment: its processes find the plugin by p2pcache's entry points.
RUN python3 -m pip install --no-cache-dir .
WORKDIR /

# SPDX-License-Identifier: Apache-2.0
# nodeagent with its libraries, all of them pure Python. `make image` builds it on bases of Debian's packages; any
# two images do that have a python3.11, the first one with pip and setuptools.
ARG BUILD_IMAGE=python:3.11-slim-bookworm
ARG RUNTIME_IMAGE=python:3.11-slim-bookworm

FROM ${BUILD_IMAGE} AS build
ENV PYTHONPATH=/src/packaging \
    NODEAGENT_CACHE=/var/cache/nodeagent
WORKDIR /src
COPY requirements/runtime.lock requirements/
COPY packaging/copyright packaging/
COPY packaging/builder packaging/builder
COPY nodeagent nodeagent
RUN ["python3.11", "-m", "builder.layer", "/opt/nodeagent"]

FROM ${RUNTIME_IMAGE}
# Nothing writes byte code later, for the root is read-only, and bases come without: each start would compile anew.
RUN ["python3.11", "-S", "-c", "import compileall, os, py_compile; compileall.compile_dir(os.path.dirname(os.__file__), quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
COPY --from=build /opt/nodeagent /opt/nodeagent
ENV PYTHONPATH=/opt/nodeagent/lib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ARG VERSION=""
ARG REVISION=""
LABEL org.opencontainers.image.title="nodeagent" \
      org.opencontainers.image.description="Owns the devices of a Kubernetes node that virtual machines are given" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The files of sysfs and the kubelet's sockets are root's. No capability is needed to use them.
# hadolint ignore=DL3002
USER 0:0
STOPSIGNAL SIGTERM
ENTRYPOINT ["python3.11", "-P", "-s", "-S", "-m", "nodeagent"]
CMD ["run"]

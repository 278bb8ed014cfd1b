# elrun as one static file in an image with nothing else: for init containers (samples/kubernetes), `elrun store`, and COPY --from into other images.
#   docker build -t elrun:0.1.0 .
#   docker build --target torchrun -t elrun:0.1.0-torchrun .      the same, with a link called torchrun
FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ cmake ninja-build pkg-config libboost-dev libfmt-dev libssl-dev zlib1g-dev nlohmann-json3-dev \
      libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libgrpc++-dev libzstd-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /elrun
COPY . .
# The program puts itself there as elrun, with the link: it runs, and is whole.
RUN cmake -C cmake/presets/release.cmake -S . -B build -G Ninja -DELRUN_BUILD_TESTS=OFF -DELRUN_WITH_CUDA=OFF \
 && cmake --build build --target elrun_static \
 && build/bin/elrun_static install /image

FROM scratch AS common
LABEL org.opencontainers.image.title="elrun" \
      org.opencontainers.image.description="Elastic launcher and rendezvous for distributed training" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/elrun /usr/local/bin/elrun
ENV PATH=/usr/local/bin
USER 1000:1000
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/elrun"]
CMD ["--help"]

FROM common AS torchrun
COPY --from=build /image/ /usr/local/bin/

FROM common AS elrun

#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/cuda/error.cuh"

namespace ft::cuda {
namespace {

struct GraphOwner {
  cudaGraph_t handle = nullptr;
  ~GraphOwner() {
    if (handle != nullptr) cudaGraphDestroy(handle);
  }
};

}  // namespace

Graph::~Graph() {
  if (handle_ != nullptr) cudaGraphExecDestroy(handle_);
}

Graph::Graph(Graph&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), nodes_(std::exchange(other.nodes_, 0)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(nodes_, other.nodes_);
  return *this;
}

void Graph::launch(StreamHandle stream) const { check(cudaGraphLaunch(handle_, stream), "cannot launch a CUDA graph"); }

// Thread-local: what other threads do with CUDA meanwhile does not break the capture; this thread's own mistakes do.
GraphCapture::GraphCapture(StreamHandle stream) : stream_(stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cannot begin to capture a CUDA graph");
}

GraphCapture::~GraphCapture() {
  if (ended_) return;
  GraphOwner graph;
  if (cudaStreamEndCapture(stream_, &graph.handle) != cudaSuccess) cudaGetLastError();
}

Graph GraphCapture::end() {
  FT_CHECK(!ended_);
  ended_ = true;
  GraphOwner captured;
  check(cudaStreamEndCapture(stream_, &captured.handle), "cannot capture a CUDA graph",
        "a call inside the capture synchronizes or allocates: this is a bug");
  Graph graph;
  size_t nodes = 0;
  check(cudaGraphGetNodes(captured.handle, nullptr, &nodes), "cannot count the nodes of a CUDA graph");
  graph.nodes_ = static_cast<int64_t>(nodes);
  check(cudaGraphInstantiate(&graph.handle_, captured.handle, 0), "cannot instantiate a CUDA graph");
  // Uploaded now, so that the first launch takes no longer than the others.
  check(cudaGraphUpload(graph.handle_, stream_), "cannot upload a CUDA graph");
  return graph;
}

}  // namespace ft::cuda

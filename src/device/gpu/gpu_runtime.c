/* The runtime of gpu.h, for CUDA, HIP and the emulation. */
#include <stdio.h>
#include <string.h>

#include "device/gpu/gpu.h"

#if defined(GPU_EMULATE)

const char *gpu_words(gpu_status s)
{
    return s == GPU_OK ? "no error" : s == emulatedErrorMemoryAllocation ? "out of memory" : "invalid value";
}

const char *gpu_kind(void)
{
    return "emulated";
}

gpu_status gpu_devices(int *count)
{
    *count = 1;
    return GPU_OK;
}

gpu_status gpu_use(int index, gpu_properties *out)
{
    (void)index;
    *out = (gpu_properties){.name = "emulated GPU", .major = 9, .processors = 1, .memory_bytes = (size_t)1 << 34};
    out->free_bytes = out->memory_bytes;
    return GPU_OK;
}

gpu_status gpu_stream_create(gpu_stream *out)
{
    *out = NULL;
    return GPU_OK;
}

void gpu_stream_destroy(gpu_stream s)
{
    (void)s;
}

gpu_status gpu_stream_wait(gpu_stream s)
{
    (void)s;
    return GPU_OK;
}

gpu_status gpu_event_create(gpu_event *out)
{
    *out = NULL;
    return GPU_OK;
}

void gpu_event_destroy(gpu_event e)
{
    (void)e;
}

gpu_status gpu_event_record(gpu_event e, gpu_stream s)
{
    (void)e, (void)s;
    return GPU_OK;
}

gpu_status gpu_event_wait(gpu_event e)
{
    (void)e;
    return GPU_OK;
}

gpu_status gpu_stream_after(gpu_stream s, gpu_event e)
{
    (void)e, (void)s;
    return GPU_OK;
}

gpu_status gpu_event_us(gpu_event from, gpu_event to, double *us)
{
    (void)from, (void)to;
    *us = 0;
    return GPU_OK;
}

gpu_status gpu_capture_begin(gpu_stream s)
{
    return emulated_capture_begin(s);
}

gpu_status gpu_capture_end(gpu_stream s, gpu_graph *out)
{
    return emulated_capture_end(s, out);
}

gpu_status gpu_graph_launch(gpu_graph g, gpu_stream s)
{
    return emulated_graph_launch(g, s);
}

void gpu_graph_destroy(gpu_graph g)
{
    emulated_graph_destroy(g);
}

gpu_status gpu_last_launch(void)
{
    return GPU_OK;
}

#else

const char *gpu_words(gpu_status s)
{
    return GPU_RUNTIME(GetErrorString)(s);
}

const char *gpu_kind(void)
{
    return GPU_AMD ? "hip" : "cuda";
}

gpu_status gpu_devices(int *count)
{
    return GPU_RUNTIME(GetDeviceCount)(count);
}

gpu_status gpu_use(int index, gpu_properties *out)
{
#if GPU_AMD
    hipDeviceProp_t p;
#else
    struct cudaDeviceProp p;
#endif
    gpu_status s = GPU_RUNTIME(GetDeviceProperties)(&p, index);
    *out = (gpu_properties){0};
    if (s == GPU_OK)
        s = GPU_RUNTIME(SetDevice)(index);
    if (s == GPU_OK)
        s = GPU_RUNTIME(MemGetInfo)(&out->free_bytes, &out->memory_bytes);
    if (s != GPU_OK)
        return s;
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    out->processors = p.multiProcessorCount;
    return GPU_OK;
}

gpu_status gpu_stream_create(gpu_stream *out)
{
    return GPU_RUNTIME(StreamCreateWithFlags)(out, GPU_RUNTIME(StreamNonBlocking));
}

void gpu_stream_destroy(gpu_stream s)
{
    if (s)
        (void)GPU_RUNTIME(StreamDestroy)(s);
}

gpu_status gpu_stream_wait(gpu_stream s)
{
    return GPU_RUNTIME(StreamSynchronize)(s);
}

gpu_status gpu_event_create(gpu_event *out)
{
    return GPU_RUNTIME(EventCreateWithFlags)(out, GPU_RUNTIME(EventDefault));
}

void gpu_event_destroy(gpu_event e)
{
    if (e)
        (void)GPU_RUNTIME(EventDestroy)(e);
}

gpu_status gpu_event_record(gpu_event e, gpu_stream s)
{
    return GPU_RUNTIME(EventRecord)(e, s);
}

gpu_status gpu_event_wait(gpu_event e)
{
    return GPU_RUNTIME(EventSynchronize)(e);
}

gpu_status gpu_stream_after(gpu_stream s, gpu_event e)
{
    return GPU_RUNTIME(StreamWaitEvent)(s, e, 0);
}

gpu_status gpu_event_us(gpu_event from, gpu_event to, double *us)
{
    float ms = 0;
    gpu_status s = GPU_RUNTIME(EventElapsedTime)(&ms, from, to);
    *us = 1000.0 * (double)ms;
    return s;
}

gpu_status gpu_capture_begin(gpu_stream s)
{
    return GPU_RUNTIME(StreamBeginCapture)(s, GPU_RUNTIME(StreamCaptureModeThreadLocal));
}

gpu_status gpu_capture_end(gpu_stream s, gpu_graph *out)
{
    GPU_RUNTIME(Graph_t) graph = NULL;
    gpu_status status = GPU_RUNTIME(StreamEndCapture)(s, &graph);
    if (status == GPU_OK)
        status = GPU_RUNTIME(GraphInstantiateWithFlags)(out, graph, 0);
    if (graph)
        (void)GPU_RUNTIME(GraphDestroy)(graph);
    return status;
}

gpu_status gpu_graph_launch(gpu_graph g, gpu_stream s)
{
    return GPU_RUNTIME(GraphLaunch)(g, s);
}

void gpu_graph_destroy(gpu_graph g)
{
    if (g)
        (void)GPU_RUNTIME(GraphExecDestroy)(g);
}

gpu_status gpu_last_launch(void)
{
    return GPU_RUNTIME(GetLastError)();
}

#endif

gpu_status gpu_alloc(void **out, size_t bytes)
{
    return GPU_RUNTIME(Malloc)(out, bytes);
}

gpu_status gpu_alloc_host(void **out, size_t bytes)
{
#if GPU_AMD
    return hipHostMalloc(out, bytes, hipHostMallocDefault);
#else
    return GPU_RUNTIME(MallocHost)(out, bytes);
#endif
}

void gpu_free(void *memory)
{
    if (memory)
        (void)GPU_RUNTIME(Free)(memory);
}

void gpu_free_host(void *memory)
{
    if (!memory)
        return;
#if GPU_AMD
    (void)hipHostFree(memory);
#else
    (void)GPU_RUNTIME(FreeHost)(memory);
#endif
}

gpu_status gpu_zero(void *memory, size_t bytes, gpu_stream s)
{
    return GPU_RUNTIME(MemsetAsync)(memory, 0, bytes, s);
}

gpu_status gpu_to_device(void *to, const void *from, size_t bytes, gpu_stream s)
{
    return GPU_RUNTIME(MemcpyAsync)(to, from, bytes, GPU_RUNTIME(MemcpyHostToDevice), s);
}

gpu_status gpu_to_host(void *to, const void *from, size_t bytes, gpu_stream s)
{
    return GPU_RUNTIME(MemcpyAsync)(to, from, bytes, GPU_RUNTIME(MemcpyDeviceToHost), s);
}

gpu_status gpu_on_device(void *to, const void *from, size_t bytes, gpu_stream s)
{
    return GPU_RUNTIME(MemcpyAsync)(to, from, bytes, GPU_RUNTIME(MemcpyDeviceToDevice), s);
}

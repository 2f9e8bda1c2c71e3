/* One safetensors file as bytes in memory: its header parsed and checked against its data. Inside src/formats only. */
#ifndef FORMATS_SAFETENSORS_HEADER_H
#define FORMATS_SAFETENSORS_HEADER_H

#include "base/memory.h"
#include "formats/safetensors.h"

enum {
    SAFETENSORS_MAX_HEADER_BYTES = 100000000, /* the reference's limit */
    SAFETENSORS_NAME_TEXT = 256,              /* for safetensors_name_text */
};

/* The largest size or offset accepted: every integer up to here is exact in JSON readers that use doubles. */
#define SAFETENSORS_MAX_INTEGER (INT64_C(1) << 53)

#define SAFETENSORS_METADATA "__metadata__"

typedef struct safetensors_file {
    tensor *tensors;      /* [count], by position in the data; names are in the arena, data points into the bytes */
    size_t count;
    json_t *metadata;     /* "__metadata__", an object of strings; NULL when absent */
    uint64_t data_bytes;  /* after the header */
} safetensors_file;

/* Parses and checks the whole file `bytes`. `where` (a path) begins the errors. */
bool safetensors_file_parse(const uint8_t *bytes, size_t count, const char *where, arena *names, safetensors_file *out, error *err);
void safetensors_file_free(safetensors_file *f);

/* A name from a file, made fit for one line of a message: control characters become '?', a long one is cut ("..."). */
const char *safetensors_name_text(const char *name, char buffer[SAFETENSORS_NAME_TEXT]);

/* shape x dtype; false on overflow and for a dimension outside 0 .. 2^53. */
bool safetensors_tensor_bytes(dtype type, int rank, const int64_t *shape, uint64_t *out);

#endif

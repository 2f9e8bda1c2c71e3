/* safetensors: reading a checkpoint (one file, or shards with an index) over mmap, and writing one as a stream.
 *
 *     u64 little endian: header bytes N | N bytes of JSON | data
 *     JSON: { "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"k": "v"} }
 *
 * Rules of the reference implementation, all checked: N <= 100,000,000; the header begins with '{'; the tensors
 * cover the data without hole or overlap, each exactly shape x dtype bytes, and the data ends at the end of file. */
#ifndef FORMATS_SAFETENSORS_H
#define FORMATS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"

enum { SAFETENSORS_MAX_RANK = 8 };

typedef enum dtype {
    DTYPE_BOOL, DTYPE_U8, DTYPE_I8, DTYPE_U16, DTYPE_I16, DTYPE_U32, DTYPE_I32, DTYPE_U64, DTYPE_I64,
    DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_F8_E8M0, DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64,
    DTYPE_COUNT
} dtype;

const char *dtype_name(dtype t);  /* "BF16" */
size_t dtype_bytes(dtype t);
bool dtype_parse(const char *name, dtype *out);

typedef struct tensor {
    const char *name;
    dtype type;
    int rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    const uint8_t *data; /* in the mapping; not aligned */
    uint64_t bytes;
    int shard;           /* index of the file it lies in */
} tensor;

/* "[2, 3]" for messages; the buffer is the caller's. */
const char *tensor_shape_text(const tensor *t, char *buffer, size_t capacity);

typedef struct checkpoint checkpoint;

/* Opens a checkpoint directory (model.safetensors.index.json, or model.safetensors, or any single *.safetensors) or one
 * .safetensors file. With an index: every tensor of the index must be in the shard it names and every tensor in a
 * shard must be in the index; shard names with '/' or leading '.' are refused. */
checkpoint *checkpoint_open(const char *path, error *err);
void checkpoint_close(checkpoint *c);

/* Where memory has several nodes: reads all data, each part of a matrix into the memory of the node whose workers will read it
 * (pool_share). Pages that are already in memory stay where they are. With one node, or without
 * a checkpoint, there is nothing to do, and nothing is read. */
bool checkpoint_place(const checkpoint *c, const pool *workers, error *err);

size_t checkpoint_count(const checkpoint *c);
const tensor *checkpoint_tensor(const checkpoint *c, size_t index); /* in file order */
const tensor *checkpoint_find(const checkpoint *c, const char *name); /* NULL when absent */
int checkpoint_shards(const checkpoint *c);
const char *checkpoint_shard_name(const checkpoint *c, int shard);   /* file name without directory */
uint64_t checkpoint_bytes(const checkpoint *c);                      /* of all tensor data */
const char *checkpoint_metadata(const checkpoint *c, int shard, const char *key); /* NULL when absent */

/* Parses a header that lies in memory (the fuzz target, and the quantizer): bytes is the whole file. On success the
 * checkpoint borrows bytes. */
checkpoint *checkpoint_from_memory(const uint8_t *bytes, size_t count, const char *name, error *err);

/* Writing: declare all tensors, then give their bytes in the same order, in pieces of any size. The file appears under its
 * name only at commit (base/file.h). */
typedef struct safetensors_writer safetensors_writer;

safetensors_writer *safetensors_writer_open(const char *path, error *err);
/* Before the first data. What is wrong with it (late, not UTF-8) is reported by the next declare, data or commit. */
void safetensors_writer_metadata(safetensors_writer *w, const char *key, const char *value);
/* Every byte that goes to the file, the header first, is shown to watch in the order of the file. Before the first data. */
typedef void (*safetensors_watch)(void *context, const void *bytes, size_t count);
void safetensors_writer_watch(safetensors_writer *w, safetensors_watch watch, void *context);
/* Refuses a name given before, and sizes that a reader would refuse. */
bool safetensors_writer_declare(safetensors_writer *w, const char *name, dtype type, int rank, const int64_t *shape, error *err);
/* Refuses more bytes than were declared. */
bool safetensors_writer_data(safetensors_writer *w, const void *bytes, size_t count, error *err);
bool safetensors_writer_commit(safetensors_writer *w, error *err); /* checks that every byte was given; frees w in any case */
void safetensors_writer_abandon(safetensors_writer *w);

#endif

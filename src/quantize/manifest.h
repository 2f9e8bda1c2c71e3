/* drawbridge-manifest.json: checksums of every file and every tensor of a directory that quantize wrote.
 *
 *     {"format": "drawbridge-manifest 1", "made_by": "drawbridge 0.1.0", "conversion": "HASH",
 *      "report": {what quantize --report writes},
 *      "files": {"config.json": {"bytes": 123, "xxh3": "0123456789abcdef"}, ...},
 *      "tensors": {"lm_head.weight": {"file": "model-00001-of-00001.safetensors", "xxh3": "..."}, ...}}
 *
 * xxh3 is XXH3-64 with seed 0, as `xxhsum -H3` prints it. "conversion" tells options and source (quantize.h). */
#ifndef QUANTIZE_MANIFEST_H
#define QUANTIZE_MANIFEST_H

#include "quantize/stream.h"

#define MANIFEST_NAME "drawbridge-manifest.json"

json_t *manifest_new(uint64_t conversion, json_t *report); /* takes the reference of report */
void manifest_add_file(json_t *m, const char *name, uint64_t bytes, uint64_t hash);
void manifest_note(json_t *m, const char *name, const text *bytes); /* a file with these bytes */
void manifest_add_shard(json_t *m, const plan *p, size_t shard, const shard_result *r);

/* The manifest's "conversion", and its "report" (json_decref frees); false when there is no readable manifest in the directory. */
bool manifest_conversion(const char *directory, uint64_t *out, json_t **report);

typedef struct manifest_summary {
    int files, tensors;
    uint64_t bytes;
} manifest_summary;

/* Reads every file of the manifest and compares. The error names the damaged file, and the damaged tensors in it. */
bool manifest_verify(const char *directory, manifest_summary *out, error *err);

#endif

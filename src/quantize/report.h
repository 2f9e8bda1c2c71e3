/* What a conversion did: error per class of matrices, bytes before and after, counts per format, what was kept and why. */
#ifndef QUANTIZE_REPORT_H
#define QUANTIZE_REPORT_H

#include "base/json.h"
#include "quantize/stream.h"

/* results: one per shard of the plan. */
void report_text(const plan *p, const shard_result *results, text *out);
json_t *report_json(const plan *p, const shard_result *results); /* its keys are described in docs/quantize.md */

#endif

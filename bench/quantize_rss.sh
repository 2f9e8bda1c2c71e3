#!/bin/bash
# Memory and speed of quantize on one large file: makes a checkpoint of about MB megabytes in a single shard (a small model with wide
# experts, random bytes), converts it, and prints the peak resident memory, which must stay below 1 GiB whatever MB is.
#   bench/quantize_rss.sh [MB] [FOLDER] [OPTIONS OF QUANTIZE...]      default: 600 in a new temporary folder, --to mxfp4
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
megabytes=${1:-600}
folder=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/drawbridge-rss-XXXXXX")
shift $(($# < 2 ? $# : 2))
trap 'rm -rf "$folder"' EXIT

/usr/bin/python3 - "$folder/src" "$megabytes" <<'PYTHON'
import json, os, random, struct, sys
out, megabytes = sys.argv[1], int(sys.argv[2])
os.makedirs(out)
H, V, HEADS, NOPE, ROPE, VD, QL, KL, IH, ID, E, DENSE = 1024, 512, 4, 64, 32, 64, 128, 128, 4, 64, 8, 1024
W = max(32, megabytes * 1000000 // (2 * 3 * H * (E + 1)) // 32 * 32)
names = {}
def add(name, *shape, dtype="BF16"):
    names[name] = (dtype, list(shape))
def layer(p, sparse):
    add(p + "input_layernorm.weight", H); add(p + "post_attention_layernorm.weight", H)
    add(p + "self_attn.q_a_proj.weight", QL, H); add(p + "self_attn.q_a_layernorm.weight", QL)
    add(p + "self_attn.q_b_proj.weight", HEADS * (NOPE + ROPE), QL)
    add(p + "self_attn.kv_a_proj_with_mqa.weight", KL + ROPE, H); add(p + "self_attn.kv_a_layernorm.weight", KL)
    add(p + "self_attn.kv_b_proj.weight", HEADS * (NOPE + VD), KL); add(p + "self_attn.o_proj.weight", H, HEADS * VD)
    i = p + "self_attn.indexer."
    add(i + "wq_b.weight", IH * ID, QL); add(i + "wk.weight", ID, H); add(i + "k_norm.weight", ID); add(i + "k_norm.bias", ID)
    add(i + "weights_proj.weight", IH, H)
    if not sparse:
        for n, s in (("gate_proj", (DENSE, H)), ("up_proj", (DENSE, H)), ("down_proj", (H, DENSE))):
            add(f"{p}mlp.{n}.weight", *s)
        return
    add(p + "mlp.gate.weight", E, H); add(p + "mlp.gate.e_score_correction_bias", E, dtype="F32")
    for m in ["shared_experts"] + [f"experts.{e}" for e in range(E)]:
        for n, s in (("gate_proj", (W, H)), ("up_proj", (W, H)), ("down_proj", (H, W))):
            add(f"{p}mlp.{m}.{n}.weight", *s)
add("model.embed_tokens.weight", V, H); add("lm_head.weight", V, H); add("model.norm.weight", H)
layer("model.layers.0.", False); layer("model.layers.1.", True)
at, header = 0, {}
for n, (t, s) in names.items():
    size = (4 if t == "F32" else 2) * (s[0] if len(s) == 1 else s[0] * s[1])
    header[n] = {"dtype": t, "shape": s, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
# bf16 values near +-2^-6: the low byte of each is random, the high byte 0x3C or 0xBC
block = bytearray(random.Random(1).randbytes(1 << 20))
for i in range(1, len(block), 2):
    block[i] = 0x3C | block[i] & 0x80
with open(out + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    while at > 0:
        f.write(block[:min(at, len(block))])
        at -= min(at, len(block))
json.dump({"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "vocab_size": V, "hidden_size": H,
    "num_hidden_layers": 2, "num_attention_heads": HEADS, "q_lora_rank": QL, "kv_lora_rank": KL, "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE, "v_head_dim": VD, "intermediate_size": DENSE, "moe_intermediate_size": W, "n_routed_experts": E,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "index_n_heads": IH, "index_head_dim": ID, "index_topk": 8,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "index_topk_pattern": "FF", "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0, "eos_token_id": [1]}, open(out + "/config.json", "w"))
PYTHON

/usr/bin/python3 - "$root/build/drawbridge" "$folder" "$@" <<'PYTHON'
import os, resource, subprocess, sys, time
binary, folder, options = sys.argv[1], sys.argv[2], sys.argv[3:] or ["--to", "mxfp4"]
size = os.path.getsize(folder + "/src/model.safetensors")
begin = time.monotonic()
subprocess.run([binary, "quantize", "-q", folder + "/src", folder + "/dst", *options], check=True, stdout=subprocess.DEVNULL)
seconds = time.monotonic() - begin
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(f"{' '.join(options)}: source {size / 1e9:.2f} GB in one file, {seconds:.1f} s ({size / 1e9 / seconds:.2f} GB/s), "
      f"peak resident memory {peak / 2**20:.0f} MiB")
sys.exit(peak > 2**30)
PYTHON

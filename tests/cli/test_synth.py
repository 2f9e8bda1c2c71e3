"""synth with small shapes: every format loads and computes, and the bytes depend on shapes, format and seed alone."""
import collections
import hashlib
import json
import math
import random
import resource
import signal
import subprocess
import time

from harness import BINARY, NANO, Case, floats, integers, main, read_safetensors, run

FORMATS = ["mxfp4", "mxfp4-attn8", "mxfp4-attn-fp8", "mxfp4-all", "fp8", "nvfp4", "bf16"]
SHAPES = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "vocab_size": 4200, "hidden_size": 160, "num_hidden_layers": 5,
    "first_k_dense_replace": 1, "num_attention_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 96, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 40, "intermediate_size": 192, "moe_intermediate_size": 64, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "n_shared_experts": 1, "max_position_embeddings": 4096, "index_n_heads": 4, "index_head_dim": 32,
    "index_topk": 64, "index_topk_freq": 4, "index_skip_topk_offset": 3, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5,
    "rope_theta": 1000000, "num_nextn_predict_layers": 1, "eos_token_id": [7],
}
# sha256 of all tensor files: the bytes are the same on every machine
EXPECTED = {
    "mxfp4-attn8": "71f1812222d0525eded8a2869ee8712f34c14578d516925ba20af0136755da63",
    "nvfp4": "43ae75ae12521f3c3dcb12dd33ad9c0bb7d7cf7f47b6e4ca690a2095fe722510",
    "bf16": "13bbf2732638e3226871c97abda39b75b01ced84ec8b3fd62cfde8b325975651",
}


def digest(folder):
    h = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        h.update(path.read_bytes())
    return h.hexdigest()


def tensors(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found.update(read_safetensors(path))
    return found


class Synth(Case):
    def config(self, **changes):
        shapes = {**SHAPES, **changes}
        return self.file("shapes.json", json.dumps({k: v for k, v in shapes.items() if v is not None}))

    def make(self, name, *options, **changes):
        out = self.folder / name
        self.succeed("synth", self.config(**changes), out, "-q", *options)
        return out

    def test_every_format(self):
        for name in FORMATS:
            with self.subTest(name):
                out = self.make(name, "--format", name)
                description = json.loads(self.succeed("inspect", out, "--json"))
                self.assertEqual(description["disagreements"], [])
                self.assertIn("all as written", self.succeed("inspect", out, "--verify"))
                self.succeed("run", out, "--raw", "-p", "hello", "-n", "3", "-q")
                if name in EXPECTED:
                    self.assertEqual(digest(out), EXPECTED[name])

    def test_which_tensors(self):
        found = tensors(self.make("out", "--format", "mxfp4-attn8"))
        types = {n: t[0] for n, t in found.items()}
        layer = "model.layers.1."
        for name, kind in [("lm_head.weight", "F8_E4M3"), ("model.embed_tokens.weight", "BF16"), ("model.norm.weight", "BF16"),
                           (layer + "self_attn.o_proj.weight", "F8_E4M3"), (layer + "self_attn.o_proj.weight_scale_inv", "F32"),
                           (layer + "self_attn.indexer.weights_proj.weight", "BF16"), (layer + "mlp.gate.weight", "BF16"),
                           (layer + "mlp.gate.e_score_correction_bias", "F32"), (layer + "mlp.experts.3.up_proj.weight_scale", "U8"),
                           (layer + "mlp.shared_experts.up_proj.weight", "F8_E4M3"), ("model.layers.5.eh_proj.weight", "BF16"),
                           ("model.layers.5.mlp.experts.0.down_proj.weight", "U8"), ("model.layers.0.mlp.up_proj.weight", "F8_E4M3")]:
            self.assertEqual(types.get(name), kind, name)
        self.assertEqual([n for n in range(6) if f"model.layers.{n}.self_attn.indexer.wk.weight" in types], [0, 1, 2, 5])

    def test_values(self):
        """Logits have a sane spread, and tokens spread over the experts."""
        out = self.make("out", "--format", "mxfp4-attn8")
        dice = random.Random(52)
        ids = self.file("ids", " ".join(str(dice.randrange(4200)) for _ in range(512)))
        result = self.folder / "logits.safetensors"
        self.succeed("logits", out, "--tokens", ids, "-o", result, "--tap", "router_experts", "--tap", "layer_out:4", "-q")
        found = read_safetensors(result)
        self.assertEqual(found["logits"][1], [512, 4200])
        for name, low, high in [("logits", 1.5, 2.5), ("layer_out.4", 0.8, 1.6)]:
            values = floats(found[name][2])
            self.assertTrue(all(map(math.isfinite, values)), name)
            spread = math.sqrt(sum(x * x for x in values) / len(values))
            self.assertTrue(low < spread < high, (name, spread))
        chosen = [n for n in found if n.startswith("router_experts")]
        self.assertEqual(len(chosen), 4)
        for name in chosen:
            load = collections.Counter(integers(found[name][2]))
            self.assertEqual(len(load), 16, name)
            self.assertLess(max(load.values()), 2 * 512 * 4 / 16, name)

    def test_same_bytes(self):
        small = ["--format", "mxfp4-attn8", "--shard-bytes", "700000"]
        one, two = self.make("one", *small, "--threads", "1"), self.make("two", *small, "--threads", "2")
        self.assertGreater(len(list(one.glob("*.safetensors"))), 2)
        self.assertEqual(digest(one), digest(two))
        self.assertEqual((one / "drawbridge-manifest.json").read_bytes(), (two / "drawbridge-manifest.json").read_bytes())
        whole = self.make("whole", "--format", "mxfp4-attn8")
        self.assertEqual(tensors(one), tensors(whole), "how tensors are put into files does not change them")
        other = tensors(self.make("other", *small, "--seed", "1"))
        for name, tensor in tensors(one).items():
            self.assertEqual(tensor[:2], other[name][:2])
            if len(tensor[2]) >= 64:
                self.assertNotEqual(tensor[2], other[name][2], name)

    def test_shipped(self):
        """Counts are those of the published model; its bytes in every layout are known."""
        for name, size in [("bf16", "1506659.920"), ("fp8", "755617.140"), ("mxfp4", "437987.305"), ("nvfp4", "464795.267")]:
            out = self.succeed("synth", "glm-5.2", self.folder / "out", "--format", name, "--dry-run")
            self.assertIn("78 layers and a draft layer, 753329921024 parameters, 40297758720 active per token", out)
            self.assertIn(size + " MB", out)
        self.assertIn("2715432704 parameters", self.succeed("synth", "glm-mini", self.folder / "out", "--dry-run"))
        self.assertIn("100 layers", self.succeed("synth", "glm-5.2", self.folder / "out", "--dry-run", "--layers", "100"))
        self.assertFalse((self.folder / "out").exists())
        self.refuse(4, "GB free", "synth", "-q", "glm-5.2", self.folder / "out", "--format", "bf16")

    def test_layers(self):
        """Lists of layers are cut, rules go on for ever."""
        kinds = ["full", "full", "shared", "full", "shared"]
        out = self.make("cut", "--layers", "3", indexer_types=kinds, index_topk_freq=None)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["num_hidden_layers"], config["indexer_types"]), (3, kinds[:3]))
        self.assertEqual(json.loads(self.succeed("inspect", self.make("more", "--layers", "7"), "--json"))["disagreements"], [])
        listed = self.config(indexer_types=kinds)
        self.refuse(2, "lists 5 layers in \"indexer_types\"", "synth", listed, self.folder / "no", "--layers", "6")

    def test_tokenizer(self):
        nano = json.loads((NANO / "config.json").read_text())
        out = self.make("with")
        self.assertEqual((out / "tokenizer.json").read_bytes(), (NANO / "tokenizer.json").read_bytes())
        self.assertEqual(json.loads((out / "config.json").read_text())["eos_token_id"], nano["eos_token_id"])
        self.assertFalse((out / "README.md").exists())
        out = self.folder / "without"
        self.assertIn("no tokenizer", self.succeed("synth", self.config(vocab_size=300), out))
        self.assertFalse((out / "tokenizer.json").exists())
        self.assertEqual(json.loads((out / "config.json").read_text())["eos_token_id"], [7])

    def test_refusals(self):
        out = self.folder / "out"
        self.refuse(2, "--format", "synth", self.config(), out, "--format", "int3")
        self.refuse(2, "--layers", "synth", self.config(), out, "--layers", "0")
        self.refuse(2, "DST", "synth", self.config())
        self.refuse(3, "neither a config.json nor a shipped configuration", "synth", "glm-huge", out)
        self.refuse(3, "cannot open", "synth", self.folder / "nothing.json", out)
        self.refuse(3, "hidden_size", "synth", self.config(hidden_size=None), out)
        self.refuse(3, "is not supported", "synth", self.config(architectures=["LlamaForCausalLM"]), out)
        self.refuse(3, "shapes.json", "synth", self.file("shapes.json", "{"), out)
        self.assertFalse(out.exists())
        self.refuse(3, "is not empty", "synth", self.config(), self.folder)
        self.refuse(1, "cannot create directory", "synth", self.config(), "/proc/nowhere")

    def test_existing(self):
        out = self.make("out", "--format", "fp8")
        before = digest(out)
        self.refuse(3, "--force", "synth", self.config(), out, "-q", "--format", "bf16")
        self.assertEqual(digest(out), before)
        done = run("synth", self.config(), out, "--format", "fp8")
        self.assertIn(b"nothing to do", done.stderr)
        self.make("out", "--format", "bf16", "--force")
        self.assertIn("all as written", self.succeed("inspect", out, "--verify"))
        self.assertNotEqual(digest(out), before)

    def test_disk_full(self):
        """A limit on file sizes fails writes as a full disk does."""
        out, limit = self.folder / "out", 1000000
        small = ["--format", "bf16", "--shard-bytes", "1500000"]
        done = run("synth", self.config(), out, "-q", *small,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"File too large", done.stderr)
        self.assertEqual({p.name for p in out.iterdir()}, {"quantize.journal"})
        self.make("out", *small)
        self.assertEqual(digest(out), digest(self.make("whole", *small)))

    def test_interrupted(self):
        """Ctrl-C leaves finished files and no torn one; the same command goes on."""
        out, big = self.folder / "out", dict(vocab_size=60000, hidden_size=256)
        small = ["--format", "bf16", "--shard-bytes", "8000000"]
        process = subprocess.Popen([BINARY, "synth", self.config(**big), out, "-q", *small], stderr=subprocess.PIPE)
        while not list(out.glob("*.safetensors")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        message = process.communicate()[1]
        self.assertIn(process.returncode, (0, 130))
        if process.returncode == 130:
            self.assertIn(b"the same command again", message)
            self.assertFalse((out / "config.json").exists())
        self.assertEqual(list(out.glob("*.tmp.*")), [])
        self.make("out", *small, **big)
        self.assertEqual(digest(out), digest(self.make("whole", *small, **big)))


if __name__ == "__main__":
    main()

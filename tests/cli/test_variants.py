"""--kernels: every level and every variant of this machine gives the same bytes through the whole model, in every number format."""
import hashlib
import json

from harness import SANITIZED, SOURCE, Case, main

FORMATS = ["mxfp4", "mxfp4-attn8", "mxfp4-attn-fp8", "mxfp4-all", "fp8", "nvfp4", "bf16"]
# Widths that are multiples of nothing but the formats' blocks, and that leave the last vector and the last panel partly empty.
WIDTHS = {"hidden_size": 288, "intermediate_size": 416, "moe_intermediate_size": 96, "num_attention_heads": 3, "kv_lora_rank": 96,
          "q_lora_rank": 160, "v_head_dim": 40, "index_n_heads": 3}


class Variants(Case):
    def names(self, model, *mode):
        """What --kernels knows here, by the program's own list."""
        found = json.loads(self.succeed("inspect", model, "--dispatch", "--json", *mode))["kernels"]
        self.assertEqual(found[0], "generic")
        self.assertEqual(len(found), len(set(found)))
        return found

    def digest(self, model, *options):
        out = self.folder / "out.safetensors"
        self.succeed("logits", model, "--tokens", self.ids, "--out", out, "-q", "-t", "2", *options)
        return hashlib.sha256(out.read_bytes()).hexdigest()

    def check(self, model, tokens, *mode, chunks=("256",)):
        """One digest for all; generic is computed once, with the first chunk."""
        self.ids = self.file("ids.txt", " ".join(str(17 * i * i % 3989 + 5) for i in range(tokens)))
        expected = self.digest(model, "--kernels", "generic", *mode)
        names = self.names(model, *mode)
        for chunk in chunks:
            self.assertEqual(self.digest(model, "--chunk", chunk, *mode), expected, ("free choice", chunk, mode))
            for name in names[1:]:
                self.assertEqual(self.digest(model, "--kernels", name, "--chunk", chunk, *mode), expected, (name, chunk, mode))
        return expected

    def test_built_in(self):
        tokens = 12 if SANITIZED else 40
        fast = self.check(SOURCE / "models/nano", tokens, chunks=("256", "5"))
        exact = self.check(SOURCE / "models/nano", tokens, "--exact", chunks=("256", "5"))
        self.assertNotEqual(fast, exact)

    def test_every_format(self):
        shapes = {**json.loads((SOURCE / "tests/small_model.json").read_text()), **WIDTHS}
        config = self.file("shapes.json", json.dumps(shapes))
        for name in FORMATS:
            with self.subTest(name):
                model = self.folder / name
                self.succeed("synth", config, model, "--format", name, "-q")
                tokens = 24 if SANITIZED else 80  # more than index_topk where there is time
                self.check(model, tokens, chunks=("256", "3"))
                self.check(model, tokens, "--exact")

    def test_modes_have_names_of_their_own(self):
        fast, exact = self.names(SOURCE / "models/nano"), self.names(SOURCE / "models/nano", "--exact")
        for name in set(fast) ^ set(exact):
            self.refuse(2, f'there are no kernels "{name}" on this machine; there are "generic"', "inspect", "--dispatch", "--kernels",
                        name, *(["--exact"] if name in fast else []))


if __name__ == "__main__":
    main()

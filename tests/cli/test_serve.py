"""drawbridge serve: every field of the APIs works or is refused by name, and every endpoint answers.

The fields are those that OpenAI's, sglang's and vLLM's clients send. A row is a field with a value and what must come of it; the
last test of each table compares the rows with the list of names.
"""
import json

import harness
from serving import ASK_WEATHER, WEATHER, Server, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STORY = user("Tell me a story.")
CHAT_FIELDS = """
    messages model frequency_penalty presence_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n response_format
    seed stop stream stream_options temperature top_p user tools tool_choice parallel_tool_calls reasoning_effort
    top_k min_p min_tokens repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos skip_special_tokens regex ebnf
    continue_final_message separate_reasoning stream_reasoning chat_template_kwargs input_ids rid extra_key cache_salt priority session_id
    session_params lora_path custom_logit_processor custom_params return_token_ids return_prompt_token_ids return_meta_info
    return_cached_tokens_details return_spec_tokens_details return_hidden_states return_routed_experts bootstrap_host bootstrap_port
    bootstrap_room routed_dp_rank disagg_prefill_dp_rank custom_labels
    thinking_token_budget include_reasoning include_stop_str_in_output truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words
    echo add_generation_prompt chat_template documents structured_outputs request_id kv_transfer_params vllm_xargs repetition_detection
    stream_interval length_penalty use_beam_search""".split()

REFUSED = {  # field: a value that would change something
    "response_format": {"type": "json_object"}, "stop_regex": "a+", "regex": "a+", "ebnf": 'root ::= "a"', "session_id": "s",
    "session_params": {"id": "s"}, "lora_path": "adapter", "custom_logit_processor": "code", "custom_params": {"a": 1},
    "return_meta_info": True, "return_hidden_states": True, "return_routed_experts": True, "bootstrap_host": "other", "bootstrap_port": 1,
    "bootstrap_room": 1, "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "custom_labels": {"a": "b"}, "thinking_token_budget": 100,
    "truncate_prompt_tokens": 10, "prompt_logprobs": 1, "allowed_token_ids": [1, 2], "bad_words": ["a"], "chat_template": "{{ x }}",
    "documents": [{"text": "a"}], "structured_outputs": {"regex": "a+"}, "kv_transfer_params": {"a": 1}, "vllm_xargs": {"a": 1},
    "repetition_detection": {"a": 1}, "stream_interval": 5, "length_penalty": 2.0, "use_beam_search": True, "echo": True,
    "skip_special_tokens": False,
}
WRONG = {  # field: values that are refused with 400 and the field's name
    "messages": [[], "text", [{"role": "nobody", "content": "x"}], [{"role": "user"}], [1]], "model": [5], "frequency_penalty": [3, "a"],
    "presence_penalty": [-3], "logit_bias": [{"a": 1}, {"5": 1000}, [], {"99999999": 1}], "logprobs": [3], "top_logprobs": [-1, 10000, "a"],
    "max_tokens": [0, -1, 1.5, "a", 10 ** 9], "max_completion_tokens": [0], "n": [0, 17, "a"], "response_format": [5], "seed": ["a", 1.5],
    "stop": [5, [5], ["x"] * 17, "", "x" * 2000], "stream": ["a", 1], "stream_options": [5, {"unknown": True}, {"include_usage": 1}],
    "temperature": [-1, "a", 1000], "top_p": [0, 2], "user": [5], "tools": [5, [5], [{"type": "x"}], [{"type": "function"}]],
    "tool_choice": ["a", {"type": "function", "function": {"name": "absent"}}], "parallel_tool_calls": [5], "reasoning_effort": ["a", 5],
    "top_k": [-2, 1.5], "min_p": [-1, 2], "min_tokens": [-1], "repetition_penalty": [0, 11], "stop_token_ids": [5, [-1], [10 ** 8], ["a"]],
    "no_stop_trim": [5], "ignore_eos": [5], "continue_final_message": [5, True], "separate_reasoning": [5], "stream_reasoning": [5],
    "chat_template_kwargs": [5, {"unknown": 1}, {"enable_thinking": 5}], "input_ids": [[], [-1], ["a"], 5], "rid": [5], "extra_key": [5],
    "cache_salt": [5], "priority": ["a", 1.5], "return_token_ids": [5], "return_prompt_token_ids": [5],
    "return_cached_tokens_details": [5], "return_spec_tokens_details": [5], "include_reasoning": [5], "include_stop_str_in_output": [5],
    "add_generation_prompt": [5], "request_id": [5],
}


class Api(harness.Case):
    """One server for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def ask(self, path, body, **fields):
        reply = self.server.post(path, {**body, **fields})
        self.assertEqual(reply.status, 200, (fields, reply))
        return reply.json

    def refused(self, path, body, name, status=400):
        reply = self.server.post(path, body)
        self.assertEqual(reply.status, status, (name, reply))
        error = reply.json["error"]
        self.assertEqual(error["param"], name, reply)
        self.assertEqual(error["type"], {400: "invalid_request_error", 404: "not_found_error"}[status], reply)
        self.assertIn(name, error["message"])
        return error

    def chat(self, messages=STORY, **fields):
        return self.ask(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 12,
                               "chat_template_kwargs": {"enable_thinking": False}}, **fields)

    def content(self, messages=STORY, **fields):
        return self.chat(messages, **fields)["choices"][0]["message"]["content"]

    def thought(self, **fields):
        """An answer with reasoning."""
        return self.ask(CHAT, {"messages": user("Hello"), "temperature": 0}, **fields)["choices"][0]["message"]

    def complete(self, **fields):
        return self.ask(COMPLETIONS, {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}, **fields)

    def text(self, **fields):
        return self.complete(**fields)["choices"][0]["text"]

    def streamed(self, **fields):
        return self.server.stream(CHAT, {"messages": STORY, "temperature": 0, "max_tokens": 12, **fields})


class ChatFields(Api):
    """One method per field or pair of fields that work: test_FIELD, or test_FIELD_and_FIELD."""

    def test_refused(self):
        for name, value in REFUSED.items():
            with self.subTest(name):
                self.refused(CHAT, {"messages": STORY, name: value}, name)

    def test_wrong(self):
        for name, values in WRONG.items():
            for value in values:
                with self.subTest(name, value=str(value)[:60]):
                    self.refused(CHAT, {"messages": STORY, "max_tokens": 1, name: value}, name)

    def test_unknown(self):
        self.refused(CHAT, {"messages": STORY, "no_such_field": 1}, "no_such_field")

    def test_null_is_not_given(self):
        plain = self.content()
        self.assertEqual(self.content(**{name: None for name in CHAT_FIELDS if name not in (
            "messages", "max_tokens", "temperature", "chat_template_kwargs")}), plain)

    def test_every_field_has_a_test(self):
        names = set(REFUSED)
        for method in dir(self):
            if method.startswith("test_"):
                names.update(method[5:].split("_and_"))
        self.assertEqual([name for name in CHAT_FIELDS if name not in names], [])
        works = [name for name in CHAT_FIELDS if name not in REFUSED]
        self.assertEqual([name for name in works if name not in WRONG], [])

    def test_messages(self):
        parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
        self.assertTrue(self.content(parts))
        self.assertEqual(self.content(parts), self.content([{"role": "system", "content": "Be brief."}, *user("Hello")]))

    def test_model(self):
        name = self.server.get("/v1/models").json["data"][0]["id"]
        self.assertEqual(self.chat(model=name)["model"], name)
        error = self.refused(CHAT, {"messages": STORY, "model": "absent"}, "model", 404)
        self.assertEqual(error["code"], "model_not_found")

    def test_frequency_penalty_and_presence_penalty_and_repetition_penalty(self):
        plain = self.content(max_tokens=60)
        self.assertNotEqual(self.content(max_tokens=60, frequency_penalty=2), plain)
        self.assertNotEqual(self.content(max_tokens=60, presence_penalty=2), plain)
        self.assertNotEqual(self.content(max_tokens=60, repetition_penalty=2), plain)
        self.assertEqual(self.content(max_tokens=60, frequency_penalty=0, presence_penalty=0, repetition_penalty=1), plain)

    def test_logit_bias(self):
        token = self.server.post("/tokenize", {"prompt": "x"}).json["tokens"][0]
        self.assertEqual(self.content(logit_bias={str(token): 100}, max_tokens=4), "xxxx")

    def test_logprobs_and_top_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=4, max_tokens=5)["choices"][0]
        self.assertEqual("".join(t["token"] for t in choice["logprobs"]["content"]), choice["message"]["content"])
        self.assertEqual([len(t["top_logprobs"]) for t in choice["logprobs"]["content"]], [4] * 5)
        self.assertNotIn("content", self.chat()["choices"][0].get("logprobs") or {})
        self.refused(CHAT, {"messages": STORY, "top_logprobs": 2}, "top_logprobs")

    def test_max_tokens_and_max_completion_tokens(self):
        for name in ("max_tokens", "max_completion_tokens"):
            answer = self.ask(CHAT, {"messages": STORY, name: 3})
            self.assertEqual((answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]), (3, "length"))

    def test_min_tokens(self):
        self.assertGreaterEqual(self.chat(user("Hello"), min_tokens=60, max_tokens=80)["usage"]["completion_tokens"], 60)
        self.assertLess(self.chat(user("Hello"), max_tokens=80)["usage"]["completion_tokens"], 60)

    def test_n_and_seed(self):
        texts = [c["message"]["content"] for c in self.chat(n=3, temperature=2, seed=7)["choices"]]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual([c["message"]["content"] for c in self.chat(n=3, temperature=2, seed=7)["choices"]], texts)
        self.assertEqual(self.content(temperature=2, seed=8), texts[1])

    def test_temperature_and_top_p_and_top_k_and_min_p(self):
        greedy = self.content()
        self.assertNotEqual(self.content(temperature=3, seed=1), greedy)
        for name, value in (("top_p", 1e-6), ("top_k", 1), ("min_p", 1)):
            self.assertEqual(self.content(**{"temperature": 3, "seed": 1, name: value}), greedy, name)
        off = {"temperature": 3, "seed": 1, "top_p": 1}
        self.assertEqual(self.content(**off, top_k=-1, min_p=0), self.content(**off, top_k=0))

    def test_stop_and_no_stop_trim_and_include_stop_str_in_output(self):
        plain = self.content(max_tokens=40)
        word = plain.split(" ")[5]
        cut = self.chat(max_tokens=40, stop=[word])["choices"][0]
        before = plain[:plain.index(word)]
        self.assertEqual((cut["message"]["content"].rstrip(), cut["finish_reason"]), (before.rstrip(), "stop"))
        self.assertEqual(cut["matched_stop"], word)
        self.assertEqual(self.content(max_tokens=40, stop=word, no_stop_trim=True), before + word)
        self.assertEqual(self.content(max_tokens=40, stop=word, include_stop_str_in_output=True), before + word)

    def test_stop_token_ids_and_return_token_ids_and_return_prompt_token_ids(self):
        answer = self.chat(return_token_ids=True)
        ids = answer["choices"][0]["token_ids"]
        self.assertEqual(len(ids), 12)
        self.assertEqual(len(answer["prompt_token_ids"]), answer["usage"]["prompt_tokens"])
        self.assertEqual(self.chat(return_prompt_token_ids=True)["prompt_token_ids"], answer["prompt_token_ids"])
        cut = self.chat(stop_token_ids=[ids[5]], return_token_ids=True)["choices"][0]
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertEqual(cut["token_ids"], ids[:ids.index(ids[5]) + 1])

    def test_ignore_eos(self):
        answer = self.chat(user("Hello"), ignore_eos=True, max_tokens=80)
        self.assertEqual((answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]), (80, "length"))

    def test_stream_and_stream_options(self):
        def texts(chunks):
            return "".join((c["choices"] or [{"delta": {}}])[0]["delta"].get("content") or "" for c in chunks)
        quiet = {"chat_template_kwargs": {"enable_thinking": False}}
        plain = self.streamed(**quiet)
        self.assertEqual(texts(plain), self.content())
        self.assertTrue(all("usage" not in c or c["usage"] is None for c in plain))
        with_usage = self.streamed(**quiet, stream_options={"include_usage": True})
        self.assertEqual(with_usage[-1]["choices"], [])
        self.assertEqual(with_usage[-1]["usage"]["completion_tokens"], 12)
        every = self.streamed(**quiet, stream_options={"include_usage": True, "continuous_usage_stats": True})
        self.assertTrue(all(c["usage"] for c in every))
        self.refused(CHAT, {"messages": STORY, "stream_options": {"include_usage": True}}, "stream_options")

    def test_user_and_priority(self):
        self.assertEqual(self.content(user="somebody", priority=5), self.content())

    def test_tools_and_tool_choice_and_parallel_tool_calls(self):
        def call(**fields):
            return self.chat(ASK_WEATHER, max_tokens=60, tools=[WEATHER], **fields)["choices"][0]
        auto = call()
        self.assertEqual(auto["finish_reason"], "tool_calls")
        function = auto["message"]["tool_calls"][0]["function"]
        self.assertEqual((function["name"], json.loads(function["arguments"])), ("get_weather", {"city": "Paris"}))
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("auto", "required", named):
            again = call(tool_choice=choice)
            self.assertEqual(again["message"]["tool_calls"][0]["function"], function, choice)
        other = self.chat(user("Hello"), max_tokens=60, tools=[WEATHER], tool_choice=named)
        self.assertEqual(other["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather")
        self.assertFalse(call(tool_choice="none")["message"].get("tool_calls"))
        self.assertEqual(len(call(parallel_tool_calls=False)["message"]["tool_calls"]), 1)
        self.refused(CHAT, {"messages": STORY, "tool_choice": "required"}, "tool_choice")

    def test_reasoning_effort_and_chat_template_kwargs(self):
        self.assertTrue(self.thought()["reasoning_content"])
        self.assertTrue(self.thought(reasoning_effort="high")["reasoning_content"])
        self.assertFalse(self.thought(reasoning_effort="none")["reasoning_content"])
        self.assertFalse(self.thought(chat_template_kwargs={"enable_thinking": False})["reasoning_content"])

    def test_separate_reasoning_and_include_reasoning(self):
        plain = self.thought()
        self.assertEqual(plain["reasoning"], plain["reasoning_content"])
        joined = self.thought(separate_reasoning=False)
        self.assertIn(plain["reasoning_content"], joined["content"])
        self.assertIn(plain["content"], joined["content"])
        self.assertFalse(joined.get("reasoning_content"))
        hidden = self.thought(include_reasoning=False)
        self.assertEqual((hidden["content"], hidden.get("reasoning_content") or None), (plain["content"], None))

    def test_stream_reasoning(self):
        def pieces(**fields):
            chunks = self.server.stream(CHAT, {"messages": user("Hello"), "temperature": 0, **fields})
            return [p for p in (c["choices"][0]["delta"].get("reasoning_content") for c in chunks if c["choices"]) if p]
        streamed, at_once = pieces(), pieces(stream_reasoning=False)
        self.assertGreater(len(streamed), 1)
        self.assertEqual(at_once, ["".join(streamed)])

    def test_continue_final_message_and_add_generation_prompt(self):
        begun = [*user("Tom has 3 apples and buys 4 more. How many apples does he have?"),
                 {"role": "assistant", "content": "Tom has 3 + 4 ="}]
        self.assertIn("7", self.content(begun, continue_final_message=True, add_generation_prompt=False))
        with_prompt = self.chat(return_prompt_token_ids=True)["prompt_token_ids"]
        without = self.chat(return_prompt_token_ids=True, add_generation_prompt=False)["prompt_token_ids"]
        self.assertEqual(with_prompt[:len(without)], without)
        self.assertLess(len(without), len(with_prompt))

    def test_input_ids(self):
        ids = self.chat(return_prompt_token_ids=True)["prompt_token_ids"]
        answer = self.ask(CHAT, {"input_ids": ids, "temperature": 0, "max_tokens": 12})
        self.assertEqual(answer["choices"][0]["message"]["content"], self.content())

    def test_rid_and_request_id(self):
        self.assertEqual(self.chat(rid="my-own-id")["id"], "my-own-id")
        self.assertEqual(self.chat(request_id="my-other-id")["id"], "my-other-id")

    def test_cache_salt_and_extra_key(self):
        def cached(**fields):
            return self.chat(user("What does a cache do with a sentence that is sent again and again? Tell me a story."), **fields)[
                "usage"]["prompt_tokens_details"]["cached_tokens"]
        for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}, {"extra_key": "a", "cache_salt": "a"}):
            first, second = cached(**fields), cached(**fields)
            self.assertEqual(first, 0, fields) if fields else None
            self.assertGreater(second, 20, fields)

    def test_return_cached_tokens_details_and_return_spec_tokens_details(self):
        self.chat()
        answer = self.chat(return_cached_tokens_details=True, return_spec_tokens_details=True)
        self.assertGreater(answer["sglext"]["cached_tokens_details"]["device"], 0)
        self.assertIn("spec_verify_ct", answer["sglext"]["spec_tokens_details"])
        self.assertNotIn("sglext", self.chat())


class CompletionFields(Api):
    """What /v1/completions has of its own; the sampling fields are the same rows as above."""

    def test_prompt(self):
        text = self.text()
        ids = self.server.post("/tokenize", {"prompt": "Once upon a time"}).json["tokens"]
        self.assertEqual(self.text(prompt=ids), text)
        for prompts in (["Once upon a time", "Hello"], [ids, ids]):
            choices = self.complete(prompt=prompts)["choices"]
            self.assertEqual([c["index"] for c in choices], [0, 1])
            self.assertEqual(choices[0]["text"], text)
        for wrong in ("", [], 5, [[]], [-1], [10 ** 8], ["a", 5], {"a": 1}):
            self.refused(COMPLETIONS, {"prompt": wrong, "max_tokens": 1}, "prompt")
        self.refused(COMPLETIONS, {"max_tokens": 1}, "prompt")

    def test_echo(self):
        self.assertEqual(self.text(echo=True), "Once upon a time" + self.text())

    def test_logprobs(self):
        choice = self.complete(logprobs=3, max_tokens=5)["choices"][0]
        self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])
        self.assertEqual(len(choice["logprobs"]["top_logprobs"]), 5)

    def test_n_with_several_prompts(self):
        choices = self.complete(prompt=["Once upon a time", "Hello"], n=2, temperature=2, seed=1)["choices"]
        self.assertEqual([c["index"] for c in choices], [0, 1, 2, 3])

    def test_skip_special_tokens(self):
        # The end of a turn, written as text when asked for.
        ids = self.ask(CHAT, {"messages": user("Hello"), "max_tokens": 1, "return_prompt_token_ids": True})["prompt_token_ids"]
        fields = {"prompt": ids, "max_tokens": 60, "stop_token_ids": [], "skip_special_tokens": False}
        self.assertIn("</think>", self.text(**fields))
        self.assertNotIn("</think>", self.text(**{**fields, "skip_special_tokens": True}))

    def test_sampling(self):
        greedy = self.text()
        self.assertEqual(self.text(temperature=3, top_k=1), greedy)
        self.assertEqual(self.complete(ignore_eos=True, max_tokens=40)["usage"]["completion_tokens"], 40)
        word = greedy.split(" ")[3]
        self.assertEqual(self.text(stop=word), greedy[:greedy.index(word)])
        self.assertEqual(self.complete(best_of=1)["choices"][0]["text"], greedy)

    def test_refused(self):
        for name, value in REFUSED.items():
            if name not in ("echo", "skip_special_tokens", "chat_template", "documents", "thinking_token_budget"):
                with self.subTest(name):
                    self.refused(COMPLETIONS, {"prompt": "a", name: value}, name)
        for name in ("suffix", "messages", "tools", "no_such_field"):
            self.refused(COMPLETIONS, {"prompt": "a", name: "x"}, name)

    def test_stream(self):
        chunks = self.server.stream(COMPLETIONS, {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12,
                                                  "stream_options": {"include_usage": True}})
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks if c["choices"]), self.text())
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 12)


class Endpoints(Api):
    def test_models(self):
        card = self.server.get("/v1/models").json["data"][0]
        self.assertEqual(card["object"], "model")
        self.assertEqual(self.server.get("/v1/models/" + card["id"]).json["id"], card["id"])
        self.assertEqual(self.server.get("/v1/models/absent").status, 404)
        self.assertGreater(card["max_model_len"], 1000)

    def test_generate(self):
        greedy = {"sampling_params": {"temperature": 0, "max_new_tokens": 12}}
        one = self.ask("/generate", {"text": "Once upon a time", **greedy})
        self.assertEqual(one["text"], self.text())
        self.assertEqual(one["meta_info"]["completion_tokens"], 12)
        self.assertEqual(one["meta_info"]["finish_reason"]["type"], "length")
        ids = self.server.post("/tokenize", {"prompt": "Once upon a time"}).json["tokens"]
        again = self.ask("/generate", {"input_ids": ids, **greedy})
        self.assertEqual(again["text"], one["text"])
        streamed = self.server.stream("/generate", {"text": "Once upon a time", **greedy})
        self.assertEqual(streamed[-1]["text"], one["text"])
        for wrong in ({}, {"text": 5}, {"text": "a", "no_such_field": 1}, {"text": "a", "sampling_params": {"no_such_field": 1}},
                      {"text": "a", "sampling_params": {"temperature": -1}}):
            self.assertEqual(self.server.post("/generate", wrong).status, 400, wrong)

    def test_tokenize_and_detokenize(self):
        for words in ("Hello, world", "naïve 日本語 🙂", "", "<|user|>"):
            tokens = self.ask("/tokenize", {"prompt": words})
            self.assertEqual(tokens["count"], len(tokens["tokens"]))
            if tokens["tokens"]:
                self.assertEqual(self.ask("/detokenize", {"tokens": tokens["tokens"], "skip_special_tokens": False})["prompt"], words)
        answer = self.ask(CHAT, {"messages": STORY, "max_tokens": 1, "return_prompt_token_ids": True})
        self.assertEqual(self.ask("/tokenize", {"messages": STORY})["tokens"], answer["prompt_token_ids"])
        for path, wrong in (("/tokenize", {"prompt": 5}), ("/tokenize", {}), ("/detokenize", {"tokens": [-1]}),
                            ("/detokenize", {"tokens": "a"})):
            self.assertEqual(self.server.post(path, wrong).status, 400, (path, wrong))

    def test_health(self):
        for path in ("/health", "/healthz", "/readyz", "/ping", "/version"):
            reply = self.server.get(path)
            self.assertEqual(reply.status, 200, (path, reply))

    def test_metrics(self):
        self.chat()
        reply = self.server.get("/metrics")
        self.assertTrue(reply.headers["Content-Type"].startswith("text/plain"))
        text = reply.bytes.decode()
        for name in """drawbridge_running_requests drawbridge_waiting_requests drawbridge_kv_pages drawbridge_output_tokens_total
                drawbridge_prompt_tokens_total drawbridge_cached_tokens_total drawbridge_time_to_first_token_seconds_bucket
                drawbridge_spec_right_total drawbridge_http_connections sglang:num_running_reqs sglang:num_queue_reqs sglang:token_usage
                sglang:max_total_num_tokens sglang:cache_hit_rate sglang:gen_throughput sglang:prompt_tokens_total
                sglang:generation_tokens_total sglang:cached_tokens_total sglang:time_to_first_token_seconds_bucket
                sglang:inter_token_latency_seconds_bucket sglang:e2e_request_latency_seconds_bucket vllm:num_requests_running
                vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total
                vllm:prompt_tokens_total vllm:generation_tokens_total vllm:num_preemptions_total vllm:request_success_total
                vllm:time_to_first_token_seconds_bucket vllm:inter_token_latency_seconds_bucket
                vllm:spec_decode_num_accepted_tokens_per_pos_total""".split():
            self.assertIn("\n" + name, text)
        before = self.server.metric("drawbridge_output_tokens_total")
        self.chat()
        self.assertEqual(self.server.metric("drawbridge_output_tokens_total"), before + 12)

    def test_server_info(self):
        info = self.ask_get("/server_info")
        self.assertEqual(info["served_model_name"], self.server.get("/v1/models").json["data"][0]["id"])

    def ask_get(self, path):
        reply = self.server.get(path)
        self.assertEqual(reply.status, 200, reply)
        return reply.json

    def test_loads(self):
        load = self.server.load()
        self.assertEqual((load["num_running_reqs"], load["num_waiting_reqs"]), (0, 0))

    def test_flush_cache(self):
        self.content(user("Remember this sentence, and tell me a story about it."))
        self.assertGreater(self.server.metric("drawbridge_prefix_tree_pages"), 0)
        self.assertEqual(self.server.post("/flush_cache", b"").status, 200)
        self.assertEqual(self.server.metric("drawbridge_prefix_tree_pages"), 0)
        usage = self.chat(user("Remember this sentence, and tell me a story about it."))["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(self.server.post("/reset_prefix_cache", b"").status, 200)

    def test_abort_request(self):
        body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "rid": "to-be-aborted", "stream": True}
        with self.server.open(COMPLETIONS, body) as response:
            response.readline()
            self.assertEqual(self.server.post("/abort_request", {"rid": "another"}).status, 200)
            self.assertEqual(self.server.in_flight(), 1)
            self.assertEqual(self.server.post("/abort_request", {"rid": "to-be-aborted"}).status, 200)
            rest = response.read().decode()
        self.assertIn("abort", rest)
        self.server.becomes_idle()
        self.assertEqual(self.server.post("/abort_request", {"rid": 5}).status, 400)

    def test_unknown_paths_and_methods(self):
        self.assertEqual(self.server.get("/absent").status, 404)
        self.assertEqual(self.server.get(CHAT).status, 405)
        self.assertEqual(self.server.request("DELETE", "/v1/models").status, 405)

    def test_bodies_that_are_not_json(self):
        for body in (b"", b"{", b"[]", b'"a"', b'{"a": 1, "a": 2}', b"\xff", b'{"messages": [}', b"[" * 100000, b'{"prompt": "\\ud800"}'):
            reply = self.server.post(CHAT, body)
            self.assertEqual(reply.status, 400, (body[:40], reply))
            self.assertEqual(reply.json["error"]["type"], "invalid_request_error")

    def test_anthropic(self):
        model = self.server.get("/v1/models").json["data"][0]["id"]
        body = {"model": model, "max_tokens": 12, "messages": STORY, "temperature": 0, "thinking": {"type": "disabled"}}
        message = self.ask("/v1/messages", body)
        self.assertEqual(message["content"][0]["text"], self.content())
        self.assertEqual(message["stop_reason"], "max_tokens")
        count = self.ask("/v1/messages/count_tokens", {"model": model, "messages": STORY})
        self.assertGreater(count["input_tokens"], 5)
        named = self.server.stream("/v1/messages", body)
        self.assertEqual([named[0][0], named[-1][0]], ["message_start", "message_stop"])
        self.assertTrue(all(name == value["type"] for name, value in named))
        for field, value in {"container": "x", "mcp_servers": [{}], "no_such_field": 1, "max_tokens": 0, "temperature": 5, "top_k": "a",
                             "stop_sequences": [5], "tools": [5], "tool_choice": {"type": "any"}, "thinking": 5, "system": 5,
                             "messages": []}.items():
            reply = self.server.post("/v1/messages", {**body, field: value})
            self.assertEqual((reply.status, reply.json["type"]), (400, "error"), (field, reply))
            self.assertIn(field, reply.json["error"]["message"])


if __name__ == "__main__":
    harness.main()

/* A model's text as nodes: fenced code blocks, headings, `code` and **bold**; everything else is shown as it is. */
import {copyButton, make} from "./dom.js";

/* [{code, language, text}]; a fence that is not closed yet runs to the end, so that streaming text looks right at every moment. */
function segments(text) {
    const found = [];
    let plain = [];
    let code = null;
    const flush = () => {
        const words = plain.join("\n").replace(/^\n+|\s+$/g, "");
        if (words) found.push({code: false, language: "", text: words});
        plain = [];
    };
    for (const line of text.split("\n")) {
        const fence = /^\s*```([^`]*)$/.exec(line);
        if (fence && !code) {
            flush();
            code = {code: true, language: fence[1].trim(), text: ""};
            found.push(code);
        } else if (fence && code && !fence[1].trim()) {
            code = null;
        } else if (code) {
            code.text += (code.text ? "\n" : "") + line;
        } else {
            plain.push(line);
        }
    }
    flush();
    return found;
}

function inline(text) {
    const nodes = [];
    let rest = 0;
    for (const m of text.matchAll(/`([^`\n]+)`|\*\*([^*\n]+)\*\*/g)) {
        nodes.push(text.slice(rest, m.index), m[1] != null ? make("code", {}, m[1]) : make("strong", {}, m[2]));
        rest = m.index + m[0].length;
    }
    return [...nodes, text.slice(rest)];
}

function plainNodes(text) {
    return text.split(/\n{2,}|\n(?=#{1,4} )|(?<=^#{1,4} [^\n]*)\n/m).filter(Boolean).map((part) => {
        const heading = /^#{1,4} (.*)$/.exec(part);
        return heading ? make("h3", {}, ...inline(heading[1])) : make("p", {}, ...inline(part));
    });
}

function codeNode(segment) {
    const code = make("code", {}, segment.text);
    const head = make("div", {className: "block-head"}, make("span", {}, segment.language || "text"), copyButton(() => code.textContent));
    return make("div", {className: "block"}, head, make("pre", {}, code));
}

/* Shows text in a container. Called again with longer text it replaces only the segments that changed. */
export function show(container, text) {
    const wanted = segments(text);
    const have = container.shown ?? [];
    let same = 0;
    const equal = (a, b) => a && b && a.code === b.code && a.language === b.language && a.text === b.text;
    while (same < wanted.length && equal(have[same], wanted[same])) same++;
    const growing = have[same]?.code && wanted[same]?.code && have.length === wanted.length && same === wanted.length - 1;
    if (growing) { /* a code block in the making keeps its node, its scroll position and the reader's selection */
        have[same].nodes[0].querySelector("pre code").textContent = wanted[same].text;
        have[same].text = wanted[same].text;
        have[same].nodes[0].querySelector(".block-head span").textContent = wanted[same].language || "text";
        have[same].language = wanted[same].language;
        return;
    }
    for (const old of have.slice(same)) old.nodes.forEach((n) => n.remove());
    for (const s of wanted.slice(same)) {
        s.nodes = s.code ? [codeNode(s)] : plainNodes(s.text);
        container.append(...s.nodes);
    }
    container.shown = [...have.slice(0, same), ...wanted.slice(same)];
}

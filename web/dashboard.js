/* The dashboard: asks /dashboard.json once a second while it is shown, and draws figures and charts. */
import {ask} from "./api.js";
import {Charts} from "./charts.js";
import {byId, count, duration, make} from "./dom.js";

let shown = false;
let timer = 0;
let charts = null;   /* null until the library has been asked for */
let columns = null;  /* name -> array; all of one length */
let offset = null;   /* from the server's clock to this one's, seconds */
let seconds = 300;   /* shown */

const percent = (share) => (share == null ? ["–", ""] : [(share * 100).toFixed(share < 0.1 ? 1 : 0), "%"]);

/* Adds the samples that came to those that are there, and forgets the oldest. A clock that ran backwards means another server. */
function merge(answer) {
    const fresh = answer.series;
    const here = Date.now() / 1000 - answer.now;
    if (offset === null || Math.abs(here - offset) > 2) offset = here;
    if (!columns || (columns.t.length && answer.now < columns.t.at(-1) - 2)) columns = fresh;
    else for (const name of Object.keys(columns)) columns[name] = columns[name].concat(fresh[name]).slice(-answer.history_s);
}

function figure(name, [value, unit], more) {
    return {name, value, unit, more};
}

function figuresOf({current: c, speculation: s, server}) {
    const ms = (v) => duration(v).join(" ");
    const list = [
        figure("Output", [count(c.output_tps), "tok/s"], `${count(c.output_tokens)} tokens since the start`),
        figure("First token, p50", duration(c.ttft_p50), `p95 ${ms(c.ttft_p95)}`),
        figure("Next token, p50", duration(c.itl_p50), `p95 ${ms(c.itl_p95)} · p99 ${ms(c.itl_p99)}`),
        figure("Running", [count(c.running), `of ${count(server.max_running)}`], `${count(c.waiting)} queued`),
        figure("KV pages in use", percent(c.pages ? c.pages_used / c.pages : null),
            `${count(c.pages_used)} of ${count(c.pages)} · ${count(c.pages_idle)} cached`),
        figure("Prefix hits", percent(c.hit_rate), `${count(c.cached_tokens)} of ${count(c.prompt_tokens)} tokens`),
    ];
    const perStep = s.tokens_per_step == null ? "–" : s.tokens_per_step.toFixed(2);
    list.push(figure(s.simulated ? "Tokens per step (simulated)" : "Tokens per step", [perStep, ""],
        s.depth ? `${s.depth} drafts per step now` : "no drafts now"));
    return list;
}

/* Nodes are made once and then only change their text, so that nothing flickers and a selection stays. */
function showList(list, entries, build, update) {
    while (list.children.length > entries.length) list.lastChild.remove();
    while (list.children.length < entries.length) list.append(build());
    entries.forEach((entry, i) => update(list.children[i], entry));
}

const setText = (node, words) => node.textContent === words || (node.textContent = words);

function showFigures(answer) {
    showList(byId("figures"), figuresOf(answer),
        () => make("div", {}, make("dt"), make("dd", {}, make("span"), make("span", {className: "unit"})), make("dd", {className: "more"})),
        (node, f) => {
            setText(node.children[0], f.name);
            setText(node.children[1].children[0], f.value);
            setText(node.children[1].children[1], f.unit);
            setText(node.children[2], f.more);
        });
}

function uptime(since) {
    const s = Math.max(0, Math.round(Date.now() / 1000 - since));
    const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
    return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}

function showFacts({server: v, current: c, speculation: s}) {
    const facts = [
        ["Model", v.model], ["Context", `${count(v.max_context)} tokens`], ["KV capacity", `${count(v.kv_tokens)} tokens`],
        ["Queue", `at most ${count(v.max_waiting)}`], ["Requests", `${count(c.requests)}, ${count(c.refused)} refused`],
        ["Preemptions", count(c.preemptions)], ["Connections", count(v.connections)],
        ["Up for", uptime(v.started) + (v.draining ? ", draining" : "")], ["Drafts", s.words || "off"], ["Version", v.version],
    ];
    showList(byId("facts"), facts, () => make("div", {}, make("dt"), make("dd")), (node, [name, value]) => {
        setText(node.children[0], name);
        setText(node.children[1], value);
    });
    if (charts?.usable && byId("facts").childElementCount === facts.length && !byId("license"))
        byId("facts").after(make("p", {id: "license", className: "quiet small"}, "Charts by uPlot, ",
            make("a", {href: "/assets/uplot-license.txt"}, "MIT licence"), "."));
}

function draw() {
    if (charts?.usable && columns?.t.length) charts.draw(columns, offset, seconds);
}

async function refresh() {
    const since = columns?.t.at(-1) ?? -1;
    const answer = await (await ask(`/dashboard.json?since=${since}`)).json();
    merge(answer);
    byId("simulated").hidden = !answer.speculation.simulated;
    byId("no-charts").hidden = answer.server.charts && (!charts || charts.usable);
    if (!charts && answer.server.charts) charts = await Charts.load(byId("charts"));
    byId("range").hidden = !charts?.usable;
    showFigures(answer);
    showFacts(answer);
    draw();
}

/* One request at a time; the next a second after the answer. */
async function loop() {
    clearTimeout(timer);
    if (!shown || document.hidden) return;
    const problem = byId("dashboard-problem");
    try {
        await refresh();
        problem.hidden = true;
    } catch (e) {
        problem.textContent = e.message;
        problem.hidden = false;
    }
    clearTimeout(timer);
    timer = setTimeout(loop, 1000);
}

export function showDashboard(on) {
    shown = on;
    if (on) loop();
}

export function dashboardTheme() {
    charts?.restyle();
    draw();
}

document.addEventListener("visibilitychange", loop);
byId("range").addEventListener("click", (e) => {
    if (!e.target.dataset.seconds) return;
    seconds = Number(e.target.dataset.seconds);
    for (const b of byId("range").children) b.setAttribute("aria-pressed", String(b === e.target));
    draw();
});

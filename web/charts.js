/* The charts, drawn by uPlot. The library is asked for when the dashboard is first opened; a build without it has figures alone. */
import {count, duration, make} from "./dom.js";

/* Steps of an axis that counts things: 1, 2, 5, 10, ... */
const wholeSteps = Array.from({length: 30}, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
const ms = (v) => duration(v).join(" ");
/* The time of day, with seconds when little is shown. */
const clock = (t, shown) => new Date(t * 1000).toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit",
    ...(shown <= 120 && {second: "2-digit"})});
const share = (v) => `${(v * 100).toFixed(v > 0 && v < 0.1 ? 1 : 0)} %`;

/* key: the series in /dashboard.json; colour: a custom property of page.css; stack: drawn on top of the series before it. */
const descriptions = [
    {title: "Throughput", about: "tokens per second", format: count, lines: [
        {key: "output_tps", name: "output", colour: "--a", fill: true},
        {key: "prompt_tps", name: "prompt, computed", colour: "--c"},
        {key: "cached_tps", name: "prompt, cached", colour: "--b"}]},
    {title: "Requests", about: "being computed, and in the queue", format: count, step: true, lines: [
        {key: "running", name: "running", colour: "--a", fill: true},
        {key: "waiting", name: "queued", colour: "--d"}]},
    {title: "Time to first token", about: "percentiles of the last 10 s", format: ms, lines: [
        {key: "ttft_p50", name: "p50", colour: "--a"},
        {key: "ttft_p95", name: "p95", colour: "--b"}]},
    {title: "Time between tokens", about: "percentiles of the last 10 s", format: ms, lines: [
        {key: "itl_p50", name: "p50", colour: "--a"},
        {key: "itl_p95", name: "p95", colour: "--b"},
        {key: "itl_p99", name: "p99", colour: "--d"}]},
    {title: "KV pages", about: "in use, and kept for their prefixes until needed", format: count, step: true, most: (c) => pagesOf(c), lines: [
        {key: "pages_used", name: "in use", colour: "--a", fill: true},
        {key: "pages_idle", name: "cached", colour: "--b", fill: true, stack: true}]},
    {title: "Prefix hits", about: "share of prompt tokens found in the cache, last 10 s", format: share, most: () => 1, lines: [
        {key: "hit_rate", name: "hit rate", colour: "--b", fill: true}]},
    {title: "Draft acceptance", about: "by draft position, last 10 s; a draft counts when all before it were right", format: share,
        most: () => 1, onlyUsed: true, lines: Array.from({length: 8}, (_, i) => (
            {key: `accept_${i + 1}`, name: String(i + 1), colour: ["--a", "--b", "--c", "--d"][i % 4], dash: i > 3}))},
    {title: "Draft depth", about: "drafts per step, and tokens that a step with drafts gave", format: (v) => String(Number(v.toFixed(2))), lines: [
        {key: "depth", name: "drafts", colour: "--c"},
        {key: "tokens_per_step", name: "tokens per step", colour: "--a"}]},
];

const pagesOf = (c) => c.pages_used.at(-1) + c.pages_idle.at(-1) + c.pages_free.at(-1);

/* A custom property as a colour that a canvas understands. */
function colourOf(name) {
    const probe = make("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
}

const faint = (colour) => colour.replace("rgb(", "rgba(").replace(")", ", 0.14)");

function loadLibrary() {
    document.head.append(make("link", {rel: "stylesheet", href: "/assets/uplot.css"}));
    return new Promise((resolve) => {
        const script = make("script", {src: "/assets/uplot.js"});
        script.addEventListener("load", () => resolve(Boolean(window.uPlot)));
        script.addEventListener("error", () => resolve(false));
        document.head.append(script);
    });
}

class Chart {
    constructor(description, container) {
        this.about = description;
        this.plot = make("div", {className: "plot"});
        this.keys = make("div", {className: "keys"});
        this.node = make("section", {className: "chart"}, make("h2", {}, description.title), make("p", {}, description.about), this.plot,
            this.keys);
        container.append(this.node);
        new ResizeObserver(() => this.u?.setSize({width: this.plot.clientWidth, height: 170})).observe(this.plot);
    }

    /* Lines that have something to show. */
    linesOf(columns) {
        return this.about.onlyUsed ? this.about.lines.filter((l) => columns[l.key].some((v) => v != null)) : this.about.lines;
    }

    options(columns, window) {
        const quiet = colourOf("--quiet");
        const grid = {stroke: colourOf("--line"), width: 1};
        const axis = {stroke: quiet, grid, ticks: {show: false}, font: "12px sans-serif"};
        const range = (u, low, high) => [0, Math.max(this.about.most ? this.about.most(this.columns) : 0, (high ?? 0) * 1.08) || 1];
        return {
            width: this.plot.clientWidth || 400, height: 170, legend: {show: false}, padding: [8, 8, 0, 0],
            cursor: {sync: {key: "dashboard"}, drag: {x: false, y: false}, points: {size: 6}, y: false},
            scales: {x: {time: true, range: () => window()}, y: {range}},
            axes: [{...axis, size: 28, space: 70, values: (u, ticks) => ticks.map((t) => clock(t, this.from))}, {...axis, size: 58, space: 34, values: (u, ticks) => ticks.map((v) => this.about.format(v)),
                ...(this.about.format === count && {incrs: wholeSteps})}],
            series: [{}, ...this.linesOf(columns).map((l) => this.lineOptions(l))],
            bands: this.about.lines.some((l) => l.stack) ? [{series: [2, 1]}] : [],
            hooks: {setCursor: [() => this.showValues()]},
        };
    }

    lineOptions(line) {
        const stroke = colourOf(line.colour);
        return {
            stroke, width: 1.75, fill: line.fill ? faint(stroke) : undefined, dash: line.dash ? [5, 4] : undefined, points: {show: false},
            paths: this.about.step ? window.uPlot.paths.stepped({align: 1}) : undefined,
        };
    }

    /* Values to draw: a stacked line is the sum of itself and the one before. */
    data(columns, offset) {
        const drawn = [columns.t.map((t) => t + offset)];
        this.linesOf(columns).forEach((l, i) =>
            drawn.push(l.stack ? columns[l.key].map((v, k) => (v == null ? null : v + (drawn[i][k] ?? 0))) : columns[l.key]));
        return drawn;
    }

    draw(columns, offset, seconds) {
        this.columns = columns;
        const keys = this.linesOf(columns).map((l) => l.key).join();
        this.node.hidden = Boolean(this.about.onlyUsed) && !keys;
        if (this.node.hidden) return;
        this.from = seconds;
        const data = this.data(columns, offset);
        if (!this.u || keys !== this.shownKeys) {
            this.u?.destroy();
            this.shownKeys = keys;
            this.makeKeys(columns);
            const window = () => [this.columns.t.at(-1) + this.offset - this.from, this.columns.t.at(-1) + this.offset];
            this.offset = offset;
            this.u = new globalThis.uPlot(this.options(columns, window), data, this.plot);
        } else {
            this.offset = offset;
            this.u.setData(data);
        }
        this.showValues();
    }

    makeKeys(columns) {
        this.values = this.linesOf(columns).map(() => make("b"));
        this.keys.replaceChildren(...this.linesOf(columns).map((l, i) => {
            const mark = make("i", {className: l.dash ? "dashed" : ""});
            mark.style.color = colourOf(l.colour);
            return make("span", {}, mark, l.name, this.values[i]);
        }));
    }

    /* The values under the cursor, or the newest. */
    showValues() {
        const at = this.u?.cursor.idx ?? this.columns.t.length - 1;
        this.linesOf(this.columns).forEach((l, i) => {
            const v = this.columns[l.key][at];
            this.values[i].textContent = v == null ? "–" : this.about.format(v);
        });
    }

    restyle() {
        this.u?.destroy();
        this.u = null;
    }
}

export class Charts {
    static async load(container) {
        const charts = new Charts();
        charts.usable = await loadLibrary();
        charts.all = charts.usable ? descriptions.map((d) => new Chart(d, container)) : [];
        return charts;
    }

    draw(columns, offset, seconds) {
        for (const chart of this.all) chart.draw(columns, offset, seconds);
    }

    restyle() {
        for (const chart of this.all) chart.restyle();
    }
}

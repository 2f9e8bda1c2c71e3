/* The page in a browser: Debian's Chromium, driven by Playwright. Screenshots go to the folder build/e2e, to be looked at. */
import assert from "node:assert/strict";
import {mkdirSync} from "node:fs";
import {dirname, join} from "node:path";
import {after, afterEach, before, beforeEach, describe, it} from "node:test";
import {chromium} from "playwright-core";
import {eventually, Server, sum, weather} from "./server.mjs";

const shots = join(dirname(process.env.DRAWBRIDGE), "e2e");
let server, browser, context, page;
let complaints; /* what the browser's console said, failed requests, requests to other hosts */

before(async () => {
    mkdirSync(shots, {recursive: true});
    server = await Server.start();
    /* Without the sandbox: tests may run as root, and only this server's page is opened. */
    const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
    browser = await chromium.launch({executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"]});
});
after(async () => {
    await browser?.close();
    await server?.stop();
});

async function open({path = "/", width = 1280, height = 800, colorScheme = "light", url = server.url} = {}) {
    context = await browser.newContext({viewport: {width, height}, colorScheme, reducedMotion: "reduce"});
    page = await context.newPage();
    complaints = [];
    page.on("console", (m) => ["error", "warning"].includes(m.type()) && complaints.push(`console: ${m.text()}`));
    page.on("pageerror", (e) => complaints.push(`error: ${e.message}`));
    page.on("request", (r) => new URL(r.url()).origin === url || r.url().startsWith("data:") || complaints.push(`other host: ${r.url()}`));
    page.on("response", (r) => r.status() >= 400 && complaints.push(`${r.status()}: ${r.url()}`));
    await page.addInitScript(() => {
        window.violations = [];
        document.addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
    });
    await page.goto(url + path);
}

const shoot = (name) => page.screenshot({path: join(shots, `${name}.png`)});
const answers = () => page.locator(".turn.assistant");

async function say(words) {
    await page.locator("#entry").fill(words);
    await page.keyboard.press("Enter");
}

/* Until the answer that streams is complete. */
async function settled() {
    await page.locator("#send").waitFor({state: "visible", timeout: 30000});
}

async function setParameter(name, value) {
    if (await page.locator("#parameters").isHidden()) await page.locator("#open-parameters").click();
    const field = page.locator(`#p-${name}`);
    await ((await field.evaluate((f) => f.tagName)) === "SELECT" ? field.selectOption(value) : field.fill(value));
}

/* From now on answers go on until they are stopped. */
async function makeEndless() {
    await page.route("**/v1/chat/completions", (route) => route.continue({
        postData: JSON.stringify({...route.request().postDataJSON(), ignore_eos: true, max_tokens: 6000}),
    }));
}

async function sidewaysScroll() {
    return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

/* Canvases that have something drawn on them: pixels of more than one colour. */
async function drawnCanvases() {
    return page.locator("#charts canvas").evaluateAll((all) => all.filter((c) => {
        if (!c.width || !c.height) return false;
        const pixels = new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer);
        return new Set(pixels).size > 4;
    }).length);
}

async function end() {
    if (!context) return;
    const violations = await page.evaluate(() => window.violations);
    await context.close();
    context = null;
    assert.deepEqual(complaints, []);
    assert.deepEqual(violations, []);
}

describe("chat", () => {
    beforeEach(() => open());
    afterEach(end);

    it("opens with the model's name and the cursor in the message field", async () => {
        await page.waitForFunction(() => document.querySelector("#model").textContent !== "");
        assert.equal(await page.evaluate(() => document.activeElement.id), "entry");
        assert.equal(await page.title(), "Drawbridge");
        await shoot("chat-welcome");
    });

    it("answers a message that was typed and sent with the keyboard, and folds the reasoning", async () => {
        await page.keyboard.type(sum.question);
        await page.keyboard.press("Enter");
        await settled();
        const answer = answers().first();
        assert.match(await answer.locator(":scope > .words").innerText(), sum.answer);
        const thoughts = answer.locator("details.thoughts");
        assert.equal(await thoughts.evaluate((d) => d.open), false);
        assert.match(await thoughts.locator("summary").innerText(), /^Thought (for|briefly)/);
        await thoughts.locator("summary").click();
        assert.ok((await thoughts.locator(".words").innerText()).length > 0);
        assert.match(await answer.locator(".under").innerText(), /tokens/);
        await shoot("chat-answer");
    });

    it("keeps line breaks with Shift+Enter", async () => {
        await page.keyboard.type("one");
        await page.keyboard.press("Shift+Enter");
        await page.keyboard.type("two");
        assert.equal(await page.locator("#entry").inputValue(), "one\ntwo");
        assert.equal(await answers().count(), 0);
    });

    it("shows an answer while it streams, and stops it with the button", async () => {
        await makeEndless();
        await setParameter("thinking", "off");
        await say("Tell me a long story.");
        await page.locator("#stop").waitFor({state: "visible"});
        const words = answers().first().locator(":scope > .words");
        const lengths = new Set();
        await eventually("the text grows", async () => lengths.add((await words.innerText()).length).size >= 4);
        await shoot("chat-streaming");
        await page.locator("#stop").click();
        await settled();
        assert.match(await answers().first().innerText(), /stopped/i);
        await server.becomesIdle();
    });

    it("stops with Escape", async () => {
        await makeEndless();
        await say("Tell me a long story.");
        await page.waitForFunction(() => document.querySelector(".turn.assistant").textContent.length > 0);
        await page.keyboard.press("Escape");
        await settled();
        assert.match(await answers().first().innerText(), /stopped/i);
        await server.becomesIdle();
    });

    it("obeys the parameters", async () => {
        await setParameter("max_tokens", "5");
        await setParameter("temperature", "0");
        await setParameter("thinking", "off");
        await shoot("chat-parameters");
        await say("Tell me a story.");
        await settled();
        assert.match(await answers().first().locator(".under").innerText(), /5 tokens[^]*cut at the token limit/);
        assert.equal(await answers().first().locator("details.thoughts").count(), 0);
    });

    it("goes on with a conversation", async () => {
        await say("Hello");
        await settled();
        await say(sum.question);
        await page.waitForFunction(() => document.querySelectorAll(".turn.assistant").length === 2);
        await settled();
        assert.match(await answers().nth(1).locator(":scope > .words").innerText(), sum.answer);
        await page.locator("#clear").click();
        assert.equal(await answers().count(), 0);
    });

    it("shows a tool call, takes its result and goes on", async () => {
        await setParameter("temperature", "0");
        await setParameter("tools", JSON.stringify([{type: "function", function: weather.tool}]));
        await say(weather.question);
        await settled();
        assert.match(await page.locator(".call").innerText(), /get_weather[^]*Paris/);
        await page.locator(".call textarea").fill(weather.result);
        await shoot("chat-tool");
        await page.locator(".go-on").click();
        await page.waitForFunction(() => document.querySelectorAll(".turn.assistant").length === 2);
        await settled();
        assert.equal((await answers().nth(1).locator(":scope > .words").innerText()).trim(), weather.answer);
    });

    it("shows what the model writes as text, never as a page", async () => {
        await say("<img src=x onerror=alert(1)><b>Hello</b>");
        await settled();
        assert.equal(await page.locator("#log img, #log .words b").count(), 0);
        assert.match(await page.locator(".turn.user").innerText(), /<img src=x/);
    });
});

describe("dashboard", () => {
    afterEach(end);

    it("draws", async () => {
        await open();
        await say("Tell me a story.");
        await page.locator("#tab-dashboard").click();
        await page.waitForFunction(() => document.querySelectorAll("#figures dd").length > 6);
        assert.equal(await page.locator("#no-charts").isHidden(), true, "this build has no charts");
        await page.waitForFunction(() => document.querySelectorAll("#charts canvas").length >= 6);
        await page.waitForTimeout(3500);
        const canvases = await page.locator("#charts canvas").count();
        assert.equal(await drawnCanvases(), canvases);
        await shoot("dashboard");
        await page.locator('#range [data-seconds="60"]').click();
        assert.equal(await page.locator('#range [data-seconds="60"]').getAttribute("aria-pressed"), "true");
    });

    it("is reached and left with the keyboard, and by its address", async () => {
        await open({path: "/#dashboard"});
        await page.locator("#view-dashboard").waitFor({state: "visible"});
        await page.locator("#tab-dashboard").focus();
        await page.keyboard.press("ArrowLeft");
        await page.locator("#view-chat").waitFor({state: "visible"});
        assert.equal(await page.evaluate(() => document.activeElement.id), "tab-chat");
    });
});

describe("looks", () => {
    afterEach(end);
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const brightness = (colour) => colour.match(/[\d.]+/g).slice(0, 3).reduce((sum_, c) => sum_ + Number(c), 0) / 3;

    it("are dark when the system is, or when chosen", async () => {
        await open({colorScheme: "dark"});
        assert.ok(brightness(await background()) < 80, await background());
        await say("Hello");
        await settled();
        await shoot("dark-chat");
        await page.locator("#tab-dashboard").click();
        await page.waitForTimeout(2500);
        await shoot("dark-dashboard");
        await page.locator("#theme").click();
        assert.ok(brightness(await background()) > 180, await background());
        await page.reload();
        assert.ok(brightness(await background()) > 180, "the choice was forgotten");
    });

    it("fit a screen of 360 pixels without scrolling sideways", async () => {
        await open({width: 360, height: 740});
        assert.equal(await sidewaysScroll(), 0);
        await say(sum.question);
        await settled();
        assert.equal(await sidewaysScroll(), 0);
        await shoot("narrow-chat");
        await page.locator("#open-parameters").click();
        assert.equal(await sidewaysScroll(), 0);
        await shoot("narrow-parameters");
        await page.locator("#close-parameters").click();
        await page.locator("#tab-dashboard").click();
        await page.waitForTimeout(2500);
        assert.equal(await sidewaysScroll(), 0);
        await shoot("narrow-dashboard");
    });
});

describe("keys", () => {
    it("are asked for, and used", async () => {
        const locked = await Server.start({keys: "alice key-of-alice-0123456789\n"});
        try {
            await open({url: locked.url});
            await page.locator("#key-bar").waitFor({state: "visible"});
            await page.locator("#key").fill("key-of-alice-0123456789");
            await page.keyboard.press("Enter");
            await say("Hello");
            await settled();
            assert.ok((await answers().first().locator(":scope > .words").innerText()).length > 0);
            await shoot("key");
            complaints = complaints.filter((c) => !/401/.test(c)); /* the first question is how the page finds out */
            await end();
        } finally {
            await locked.stop();
        }
    });
});

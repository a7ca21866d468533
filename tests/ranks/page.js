// SPDX-License-Identifier: Apache-2.0
// node page.js: runs the script of a report's page, from stdin, in what little of a browser it uses.
// Prints the texts of the page, one a line, and what is drawn as the element and its attributes.
"use strict";
const markup = require("fs").readFileSync(0, "utf8");
const [, json] = markup.match(/<script type="application\/json" id="report">([^]*?)<\/script>/);
const [, script] = markup.match(/<script>([^]*?)<\/script>/);

class Element {
	constructor(name) {
		Object.assign(this, { name, attributes: {}, parts: [], heard: {}, style: {} });
	}
	setAttribute(key, value) {
		this.attributes[key] = String(value);
	}
	append(...parts) {
		this.parts.push(...parts);
	}
	replaceChildren(...parts) {
		this.parts = parts;
	}
	addEventListener(name, call) {
		this.heard[name] = call;
	}
	remove() {
		this.parts = [];
	}
	all(name) {
		const below = this.parts.flatMap((part) => (part.all ? part.all(name) : []));
		return this.name === name ? [this, ...below] : below;
	}
	print() {
		if (this.name === "path")
			console.log(`path ${this.attributes.class} ${this.attributes.d}`);
		for (const part of this.parts)
			part.print ? part.print() : console.log(String(part));
	}
}

const body = new Element("body");
const document = {
	body,
	createElement: (name) => new Element(name),
	createElementNS: (space, name) => new Element(name),
	getElementById: () => ({ textContent: json }),
};
new Function("document", script)(document);
for (const drawing of body.all("svg"))
	drawing.heard.keydown?.({ key: "ArrowRight" });
for (const button of body.all("button"))
	button.heard.click();
body.print();

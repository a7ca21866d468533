/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/page/html.h"

#include <math.h>
#include <stddef.h>

#include "core/text.h"
#include "launcher/page/plot.h"

static const char style[] =
	":root{color-scheme:light dark}\n"
	"body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em}\n"
	"table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\n"
	"td,th{padding:.2em .7em;text-align:left;border-bottom:1px solid var(--grid)}\n"
	"td.n{text-align:right;white-space:nowrap}\n"
	".wide{overflow-x:auto}\n"
	".quiet{color:var(--axis)}\n"
	"figcaption{font-weight:600}\n";

static struct quantity scaled(double value, const char *unit)
{
	static const struct {
		double factor;
		const char *prefix;
	} steps[] = {{1e9, "G"},  {1e6, "M"},  {1e3, "k"}, {1, ""},
		     {1e-3, "m"}, {1e-6, "µ"}, {1e-9, "n"}};
	size_t i = 0;
	struct quantity quantity;

	while (i + 1 < sizeof(steps) / sizeof(*steps) && fabs(value) < steps[i].factor * 0.9995)
		i++;
	snprintf(quantity.text, sizeof(quantity.text), "%.3g%s%s%s", value / steps[i].factor,
		 *unit ? " " : "", steps[i].prefix, unit);
	return quantity;
}

struct quantity quantity_text(double value, enum unit unit)
{
	struct quantity quantity;

	switch (unit) {
	case UNIT_BYTES:
		snprintf(quantity.text, sizeof(quantity.text), "%s",
			 zero_size_text(value > 0 ? (uint64_t)value : 0).text);
		return quantity;
	case UNIT_SECONDS:
		if (value > 0 && value < 999.5)
			return scaled(value, "s");
		/* Seconds beyond a thousand are still seconds. */
		snprintf(quantity.text, sizeof(quantity.text), "%.0f s", value);
		return quantity;
	}
	snprintf(quantity.text, sizeof(quantity.text), "%.4g", value);
	return quantity;
}

void html_text(FILE *out, const char *text)
{
	static const char *const names[] = {
		['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;", ['"'] = "&quot;"};

	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c < sizeof(names) / sizeof(*names) && names[c])
			fputs(names[c], out);
		else
			putc(c < ' ' || c == 0x7f ? '?' : *text, out);
	}
}

void html_cell(FILE *out, const char *class, const char *text)
{
	fprintf(out, "<td class=\"%s\">", class);
	html_text(out, text);
	fprintf(out, "</td>");
}

void html_head(FILE *out, const char *title, const char *css)
{
	fprintf(out, "<!DOCTYPE html>\n"
		     "<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
		     "<meta charset=\"utf-8\"/>\n"
		     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
		     "<title>");
	html_text(out, title);
	fprintf(out, "</title>\n<style>\n%s%s%s</style>\n</head>\n<body>\n<h1>", plot_style, style,
		css);
	html_text(out, title);
	fprintf(out, "</h1>\n");
}

void html_tail(FILE *out)
{
	fprintf(out, "</body>\n</html>\n");
}

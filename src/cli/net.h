/* What the files of `box net` share. */
#pragma once

#include "cli/log_lines.h"

/* box net NAME --check HOST[:PORT] */
int net_check(const struct cli_args *args, struct err *err);
/* box net NAME --allow RULE --deny RULE, on the machine that is up */
int net_change(const struct cli_args *args, struct err *err);
/* box net NAME --learn, with a reader of the log that was not begun */
int net_learn(struct log_lines *lines, struct err *err);

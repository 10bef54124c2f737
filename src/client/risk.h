/*
 * Changes that deserve a look of a person before they reach a machine where they may be run: what
 * is executed, or read as a command, without anybody asking for it. Pure, by names and modes alone.
 */
#pragma once

#include "wire/change.h"

enum risk {
	RISK_EXECUTABLE = 1u << 0,
	/* Runs with somebody else's rights. */
	RISK_SETID = 1u << 1,
	RISK_LINK_ABSOLUTE = 1u << 2,
	/* Leads out of /data by "..". */
	RISK_LINK_OUT = 1u << 3,
	/* A device, fifo or socket. */
	RISK_SPECIAL = 1u << 4,
	/* Run by git, or says what git runs. */
	RISK_GIT = 1u << 5,
	/* Run by a CI service. */
	RISK_CI = 1u << 6,
	/* Read by a shell, by ssh or by an editor as it starts. */
	RISK_START_UP = 1u << 7,
};
#define RISK_COUNT 8

/* The risks of a change, in one number; what is deleted has none. */
unsigned risk_of(const struct change *change);

/* What the risk of bit at, 0 to RISK_COUNT - 1, is: a phrase for a person, a word for programs. */
const char *risk_text(size_t at);
const char *risk_word(size_t at);

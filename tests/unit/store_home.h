/* Where each test of the store finds itself: a directory of its own, and BOX_HOME below it. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/io.h"
#include "store/store.h"

static char top[64];
static char home[128];
static struct store store;
static struct err err;

/* BOX_HOME is named, and not there yet. Returns 0 or -1, as cmocka wants it. */
static inline int home_name(void)
{
	snprintf(top, sizeof(top), "/tmp/test-store-XXXXXX");
	if (!mkdtemp(top)) {
		return -1;
	}
	snprintf(home, sizeof(home), "%s/home", top);
	setenv("BOX_HOME", home, 1);
	store = (struct store){.home_fd = -EBADF};
	err = (struct err){0};
	return 0;
}

static inline int home_set_up(void **state)
{
	(void)state;
	return home_name() < 0 || store_open(true, &store, &err) < 0 ? -1 : 0;
}

static inline int home_tear_down(void **state)
{
	(void)state;
	store_close(&store);
	return remove_tree_at(AT_FDCWD, top);
}

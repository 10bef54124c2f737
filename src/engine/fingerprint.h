/*
 * What a snapshot stands on. A snapshot is valid as long as its text is the one made from what is
 * there now: another QEMU, firmware, kernel, guest program, image or Boxfile makes another text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "engine/kernel.h"
#include "spec/spec.h"

/*
 * Makes the text: box's version, the monitor (engine_identity), kernel, modules and guest program
 * (by inode, size and times), the spec's snapshot key and the image's key as given. Contents are
 * not read, so it takes microseconds. *ret_text is owned by the caller. 0 or a negative errno.
 */
int fingerprint_snapshot(const struct spec *spec, const char *image_key, bool hardware,
			 const struct kernel_paths *paths, char **ret_text, struct err *err);

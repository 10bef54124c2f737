/*
 * Confinements that a build for the tests can switch off, one by one.
 *
 * A check that cannot fail says nothing. With the meson option `mutants` the environment variable
 * BOX_MUTANT holds names, separated by commas, of confinements that are left out;
 * tests/escape/mutants lists all of them and the checks that must notice. In every other build
 * MUTANT is the constant false, nothing of it is in a program, and tests/release looks for that.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef BOX_MUTANTS

/* Whether name is among those of BOX_MUTANT. */
bool mutant_is_on(const char *name);

/* BOX_MUTANT itself, as an environment for a program that otherwise has none. */
char *const *mutant_environment(void);

#define MUTANT(name) mutant_is_on(name)
#define MUTANT_ENVIRONMENT mutant_environment()

#else

#define MUTANT(name) false
#define MUTANT_ENVIRONMENT ((char *const[]){NULL})

#endif

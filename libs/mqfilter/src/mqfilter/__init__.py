"""Conditions on message properties in SQL92, as far as RocketMQ 5 has it (mechanism F2).

    big = parse("amount > 100 AND region IN ('east', 'west')")
    big.evaluate({"amount": "250", "region": "east"})  # True

- Values: properties by name; numbers (7, -7, 3.5, 1e3, 7L), texts ('it''s'), TRUE, FALSE and NULL.
- =, <>, >, >=, <, <=, BETWEEN, IN, IS NULL, CONTAINS, STARTSWITH, ENDSWITH; NOT BETWEEN, NOT IN, IS NOT NULL, ...
- NOT binds tighter than AND, and AND tighter than OR. Keywords may be written in any case, names of properties may not.
- "-- to the end of the line" and "/* between */" are comments.

A property is a text, and what stands beside it says how it is read: as a number beside a number, as TRUE or FALSE
beside a boolean (what is not "true" is false). >, >=, <, <= and BETWEEN compare numbers only, also of two properties.

A condition is true, false, or unknown (None); only what is true is wanted. A comparison is unknown when its property is
missing, or should be a number and is none. NOT unknown is unknown, and AND and OR are unknown when the other side does
not decide. CONTAINS and its like are false, with NOT too, when the property is missing or the text after them is empty.

RocketMQ answers the same, with these exceptions. There 3.5 beside an integer is an error, and an error anywhere makes
the whole expression false; here 3.5 is a number, and what is none is unknown in its own comparison only. A missing
property on the right of = or <> is unknown here, as it is on the left; there it is false or true. NOT a = 3 is
NOT (a = 3), as in SQL; there it is (NOT a) = 3. Rejected here, and of no use there: a property that stands alone, a
condition that is compared, constants of two kinds that are compared, a sign before a property, and what follows the end
of a condition.
"""

from mqfilter.conditions import Condition, Properties
from mqfilter.parser import EXPRESSION_CHARACTERS_MAX, NESTING_MAX, FilterSyntaxError, parse

__all__ = ["EXPRESSION_CHARACTERS_MAX", "NESTING_MAX", "Condition", "FilterSyntaxError", "Properties", "parse"]

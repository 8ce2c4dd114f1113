"""Grade pairs with a judge, audit the judge, and correct its grades with a few labels of people."""

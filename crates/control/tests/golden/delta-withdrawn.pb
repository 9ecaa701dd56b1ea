
%­shop/checkout"shop/checkout